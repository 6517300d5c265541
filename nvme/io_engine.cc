#include "nvme/io_engine.h"

#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "nvme/libaio_engine.h"
#include "nvme/thread_engine.h"
#include "nvme/uring_engine.h"

namespace zinf::nvme {

namespace {

std::unique_ptr<IoEngine> try_engine(EngineKind kind, const EngineOptions& options,
                                     std::string& why) {
  const int depth = options.depth;
  switch (kind) {
    case EngineKind::kIoUring:
      return make_uring_engine(depth, options.quiet, why);
    case EngineKind::kLibaio:
      return make_libaio_engine(depth, why);
    case EngineKind::kThreads:
      return make_thread_engine(depth, options.threads);
    case EngineKind::kAuto:
      break;
  }
  ZINF_CHECK(false, "auto is resolved by make_engine");
  return nullptr;
}

std::unique_ptr<IoEngine> choose_engine(const EngineOptions& options) {
  std::string reasons;
  for (const EngineKind kind : {EngineKind::kIoUring, EngineKind::kLibaio, EngineKind::kThreads}) {
    std::string why;
    if (auto engine = try_engine(kind, options, why)) {
      if (!reasons.empty()) {
        log::warning_once(
            fmt::format("NVMe engine: {}, because {}", engine_kind_name(kind), reasons));
      }
      return engine;
    }
    reasons += fmt::format("{}{} is unavailable ({})", reasons.empty() ? "" : ", ",
                           engine_kind_name(kind), why);
  }
  ZINF_CHECK(false, "threads always work");
  return nullptr;
}

}  // namespace

EngineKind parse_engine_kind(std::string_view text) {
  for (const EngineKind kind :
       {EngineKind::kAuto, EngineKind::kIoUring, EngineKind::kLibaio, EngineKind::kThreads}) {
    if (text == engine_kind_name(kind)) return kind;
  }
  throw Error(
      ErrorKind::kUsage,
      fmt::format("unknown I/O engine \"{}\"; expected auto, io_uring, libaio or threads", text));
}

std::string_view engine_kind_name(EngineKind kind) {
  switch (kind) {
    case EngineKind::kAuto:
      return "auto";
    case EngineKind::kIoUring:
      return "io_uring";
    case EngineKind::kLibaio:
      return "libaio";
    case EngineKind::kThreads:
      return "threads";
  }
  return "?";
}

std::unique_ptr<IoEngine> make_engine(const EngineOptions& options) {
  if (options.depth < 1) {
    throw Error(ErrorKind::kUsage,
                fmt::format("I/O depth {} is too small; expected 1 or more", options.depth));
  }
  if (options.kind == EngineKind::kAuto) return choose_engine(options);
  std::string why;
  auto engine = try_engine(options.kind, options, why);
  if (!engine) {
    throw Error(
        ErrorKind::kFailed,
        fmt::format("I/O engine {} is unavailable: {}", engine_kind_name(options.kind), why),
        "io.engine: auto takes the best engine that works here");
  }
  return engine;
}

std::string why_unavailable(EngineKind kind, int depth) {
  if (kind == EngineKind::kAuto) return "";
  std::string why;
  try_engine(kind, {kind, depth, 0}, why);
  return why;
}

}  // namespace zinf::nvme
