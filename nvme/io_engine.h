// The one door to asynchronous file I/O. An engine moves blocks; it knows no requests, no retries,
// no order. Everything above it (splitting, short transfers, errors) is IoLane's work and the same
// for every engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/bytes.h"

namespace zinf::nvme {

enum class EngineKind { kAuto, kIoUring, kLibaio, kThreads };

// "auto", "io_uring", "libaio", "threads"; parse throws Error(kUsage) that lists them.
EngineKind parse_engine_kind(std::string_view text);
std::string_view engine_kind_name(EngineKind kind);

enum class IoOp : std::uint8_t { kRead, kWrite, kSync };

// One transfer of at most limits().max_block bytes. kSync makes durable what completed on the file
// before.
struct IoBlock {
  IoOp op = IoOp::kRead;
  int file = -1;  // what add_file() returned
  std::uint64_t offset = 0;
  std::byte* memory = nullptr;
  Bytes bytes = 0;
  std::uint64_t tag = 0;  // returned with the completion; below 2^63
};

struct IoCompletion {
  std::uint64_t tag = 0;
  std::int64_t result = 0;  // bytes moved, or -errno
};

struct EngineLimits {
  int depth = 0;        // most blocks in flight
  Bytes max_block = 0;  // the kernel cuts single transfers above 2 GiB - 4 KiB
};

// All calls come from the thread that made the engine, except wake().
class IoEngine {
 public:
  virtual ~IoEngine() =
      default;  // waits for blocks in flight: their memory may be freed afterwards
  virtual std::string_view name() const = 0;
  virtual EngineLimits limits() const = 0;

  // Makes an open descriptor known; it must stay open as long as the engine lives.
  virtual int add_file(int descriptor) = 0;

  // Memory that blocks will lie in, valid as long as the engine lives. An engine that gains by it
  // pins the memory, within the limit of locked memory; a block elsewhere is as good. Returns the
  // bytes that are pinned now, from the front.
  virtual Bytes add_memory(std::span<std::byte>) { return 0; }

  // Takes blocks from the front and returns how many; fewer when full or when the kernel says "try
  // later". They may start only with the next reap(), so that one system call does both. Large
  // blocks start two at a time: more in one call would be merged.
  virtual std::size_t submit(std::span<const IoBlock> blocks) = 0;

  // Fills out from the front, returns how many. Waits until one completes, wake() is called or the
  // time is up (negative: no limit; 0: only looks). May return 0 at any time.
  virtual std::size_t reap(std::span<IoCompletion> out, double timeout_seconds) = 0;

  // Blocks that the kernel (or a worker) still holds.
  virtual int in_flight() const = 0;

  // Nobody will reap or free the engine: blocks that have not been started never are, since file
  // and memory will not be there for them.
  virtual void abandon() {}

  // Makes a reap() that waits, or the next one, return soon. Any thread.
  virtual void wake() = 0;
};

struct EngineOptions {
  EngineKind kind = EngineKind::kAuto;
  int depth = 32;
  int threads = 0;     // of kThreads; 0: as many as the depth, at most 16
  bool quiet = false;  // no warning of memory that can't be registered: for short measurements
};

// kAuto takes the first of io_uring, libaio, threads that works here and says once in the log why
// an earlier one did not. A kind chosen by name that is unavailable is an Error naming the likely
// cause. Call it in the thread that will use the engine.
std::unique_ptr<IoEngine> make_engine(const EngineOptions& options);

// Empty when the kind works here with this depth, else the reason.
std::string why_unavailable(EngineKind kind, int depth);

// Puts an engine into another (faults, for tests).
using EngineWrapper = std::function<std::unique_ptr<IoEngine>(std::unique_ptr<IoEngine>)>;

}  // namespace zinf::nvme
