#include "engine/observe/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <optional>

#include "engine/base/disk.h"
#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/base/under_way.h"
#include "engine/observe/atomic_file.h"
#include "engine/observe/json_fields.h"
#include "engine/observe/posix_write.h"

namespace zinf::observe {

namespace {

constexpr std::string_view kStepKey = "{\"step\":";

[[noreturn]] void fail(const std::string& what, const std::string& path, int error,
                       Bytes needed = 0) {
  throw Error(ErrorKind::kFailed,
              str(what, " ", path, ": ", std::strerror(error), missing_space(error, path, needed)),
              error == ENOSPC
                  ? "free space in the run folder; the run can be resumed from its last commit"
                  : "");
}

// The step of a line as this writer makes them, without parsing the rest; nullopt: not such a line.
std::optional<std::uint64_t> step_of(std::string_view line) {
  if (!line.starts_with(kStepKey) || !line.ends_with('}')) return std::nullopt;
  std::uint64_t step = 0;
  const char* begin = line.data() + kStepKey.size();
  const auto [end, error] = std::from_chars(begin, line.data() + line.size(), step);
  if (error != std::errc{} || *end != ',') return std::nullopt;
  return step;
}

// What to do with the lines of a file that is reopened.
struct Kept {
  std::uint64_t dropped = 0;
  Bytes prefix = 0;         // bytes before the first line that goes
  bool only_prefix = true;  // nothing to keep lies behind it
};

// Visits all lines; `keep` gets those that stay. Steps rise from line to line; anything else is a
// leftover.
template <typename Keep>
Kept sift_lines(const std::string& path, std::uint64_t last_step, const Keep& keep) {
  Kept kept;
  std::ifstream in(path, std::ios::binary);
  std::string line;
  std::uint64_t previous = 0;
  while (std::getline(in, line)) {
    const bool whole = !in.eof();  // the newline was there
    const auto step = whole ? step_of(line) : std::nullopt;
    if (step && *step > previous && *step <= last_step) {
      keep(line);
      previous = *step;
      if (kept.dropped == 0) kept.prefix += line.size() + 1;
      kept.only_prefix &= kept.dropped == 0;
    } else {
      ++kept.dropped;
    }
  }
  return kept;
}

// Leaves only the lines up to last_step; returns how many went. Long files are cut in place; only
// damage in the middle (an edit by hand) makes it copy.
std::uint64_t drop_lines_after(const std::string& path, std::uint64_t last_step) {
  const Kept kept = sift_lines(path, last_step, [](const std::string&) {});
  if (kept.dropped == 0) return 0;
  if (kept.only_prefix) {
    if (::truncate(path.c_str(), static_cast<off_t>(kept.prefix)) != 0)
      fail("cutting", path, errno);
    return kept.dropped;
  }
  std::string text;
  sift_lines(path, last_step, [&](const std::string& line) { text += line + "\n"; });
  write_file_atomically(path, text, Durability::kSynced);
  return kept.dropped;
}

Json to_json(const StepRecord& record) {
  Json json;
  json["step"] = record.step;
  json["loss"] = json_number(record.loss);
  json["lr"] = json_number(record.lr);
  json["grad_norm"] = json_number(record.grad_norm);
  json["clip_factor"] = json_number(record.clip_factor);
  json["tokens"] = record.tokens;
  json["target_tokens"] = record.target_tokens;
  json["padding"] = json_number(record.padding);
  json["seconds"] = json_number(record.seconds);
  json["tokens_per_second"] = json_number(record.tokens_per_second);
  json["efficiency"] = json_number(record.efficiency);
  json["bottleneck"] = record.bottleneck;
  json["redo"] = record.redo;
  json["peak_bytes"] = Json::object();
  for (const auto& [tier, bytes] : record.peak_bytes) json["peak_bytes"][tier] = bytes;
  for (std::size_t i = 0; i < kLanes; ++i) {
    json["lane_busy"][std::string(kLaneNames[i])] = json_number(record.lane_busy.values[i]);
  }
  for (std::size_t i = 0; i < kLanes; ++i) {
    json["stall_seconds"][std::string(kLaneNames[i])] = json_number(record.stall_seconds.values[i]);
  }
  json["nvme_read_bytes"] = record.nvme_read_bytes;
  json["nvme_write_bytes"] = record.nvme_write_bytes;
  if (record.eval_loss) json["eval_loss"] = json_number(*record.eval_loss);
  if (record.loss_scale) json["loss_scale"] = json_number(*record.loss_scale);
  if (record.overflow_skips) json["overflow_skips"] = *record.overflow_skips;
  if (record.model_flops) json["model_flops"] = json_number(*record.model_flops);
  if (record.executed_flops) json["executed_flops"] = json_number(*record.executed_flops);
  return json;
}

StepRecord from_json(const Json& json) {
  StepRecord record;
  get_count(json, "step", record.step);
  get_number(json, "loss", record.loss);
  get_number(json, "lr", record.lr);
  get_number(json, "grad_norm", record.grad_norm);
  get_number(json, "clip_factor", record.clip_factor);
  get_count(json, "tokens", record.tokens);
  get_count(json, "target_tokens", record.target_tokens);
  get_number(json, "padding", record.padding);
  get_number(json, "seconds", record.seconds);
  get_number(json, "tokens_per_second", record.tokens_per_second);
  get_number(json, "efficiency", record.efficiency);
  get_text(json, "bottleneck", record.bottleneck);
  record.redo = json.value("redo", false);
  get_byte_map(json, "peak_bytes", record.peak_bytes);
  for (std::size_t i = 0; i < kLanes; ++i) {
    const std::string name(kLaneNames[i]);
    get_number(member(json, "lane_busy"), name.c_str(), record.lane_busy.values[i]);
    get_number(member(json, "stall_seconds"), name.c_str(), record.stall_seconds.values[i]);
  }
  get_count(json, "nvme_read_bytes", record.nvme_read_bytes);
  get_count(json, "nvme_write_bytes", record.nvme_write_bytes);
  get_optional(json, "eval_loss", record.eval_loss);
  get_optional(json, "loss_scale", record.loss_scale);
  if (json.contains("overflow_skips"))
    get_count(json, "overflow_skips", record.overflow_skips.emplace());
  get_optional(json, "model_flops", record.model_flops);
  get_optional(json, "executed_flops", record.executed_flops);
  return record;
}

}  // namespace

std::string metrics_line(const StepRecord& record) { return dump(to_json(record)); }

StepRecord parse_metrics_line(std::string_view line) {
  try {
    return from_json(Json::parse(line));
  } catch (const Json::exception& error) {
    throw Error(ErrorKind::kUsage, str("not a line of metrics.jsonl: ", error.what()));
  }
}

std::vector<StepRecord> read_metrics(const std::string& path) {
  const std::string text = read_file(path);
  std::vector<StepRecord> records;
  std::size_t begin = 0, number = 1;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1, ++number) {
    try {
      records.push_back(parse_metrics_line(std::string_view(text).substr(begin, end - begin)));
    } catch (const Error& error) {
      throw Error(ErrorKind::kUsage, str(path, ":", number, ": ", error.what()));
    }
  }
  return records;
}

MetricsWriter::MetricsWriter(const std::string& path, std::uint64_t last_step)
    : path_(path), dropped_lines_(drop_lines_after(path, last_step)) {
  fd_ = ::open(path.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
  if (fd_ < 0) fail("opening", path, errno);
}

MetricsWriter::~MetricsWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void MetricsWriter::append(const StepRecord& record) {
  const UnderWay watched("files", "writing", path_);
  const std::string line = metrics_line(record) + "\n";
  const off_t end = ::lseek(fd_, 0, SEEK_END);
  const int error = write_all(fd_, line);
  if (error == 0) return;
  // A full disk may have taken half of it; the file stays a list of whole lines.
  if (end >= 0 && ::ftruncate(fd_, end) != 0) fail("cutting", path_, errno);
  fail("writing", path_, error, line.size());
}

void sync_metrics(const std::string& path) {
  const UnderWay watched("files", "syncing", path);
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return;
  if (fd < 0) fail("opening", path, errno);
  const int error = ::fdatasync(fd) != 0 ? errno : 0;
  ::close(fd);
  if (error != 0) fail("syncing", path, error);
}

}  // namespace zinf::observe
