#include "engine/observe/trace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/str.h"
#include "engine/observe/json_fields.h"
#include "engine/observe/posix_write.h"

namespace zinf::observe {

namespace {

constexpr int kProcess = 1;

std::string quoted(std::string_view text) { return dump(Json(std::string(text))); }

}  // namespace

TraceWriter::TraceWriter(const std::string& path, Bytes max_bytes)
    : path_(path), max_bytes_(max_bytes) {
  fd_ = ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  if (fd_ < 0) throw Error(ErrorKind::kFailed, str("creating ", path, ": ", std::strerror(errno)));
  buffer_.reserve(kTraceBuffer);
  buffer_ = "[\n";
  put(fmt::format(R"({{"name":"process_name","ph":"M","pid":{},"args":{{"name":"zinf"}}}})",
                  kProcess));
}

TraceWriter::~TraceWriter() {
  try {
    close();
  } catch (const std::exception& error) {
    log::warning(error.what());
  }
  if (fd_ >= 0) ::close(fd_);
}

double TraceWriter::micros(double seconds) {
  if (std::isnan(origin_)) origin_ = seconds;
  return (seconds - origin_) * 1e6;
}

// The lane's track, named and ordered when it is first seen.
int TraceWriter::track(std::string_view lane) {
  const auto found = tracks_.find(lane);
  if (found != tracks_.end()) return found->second;
  const int id = static_cast<int>(tracks_.size()) + 1;
  tracks_.emplace(lane, id);
  put(fmt::format(R"({{"name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":{}}}}})",
                  kProcess, id, quoted(lane)));
  put(fmt::format(
      R"({{"name":"thread_sort_index","ph":"M","pid":{},"tid":{},"args":{{"sort_index":{}}}}})",
      kProcess, id, id));
  return id;
}

void TraceWriter::span(const TraceSpan& span) {
  const std::lock_guard lock(mutex_);
  if (fd_ < 0 || full_) return;
  const int tid = track(span.lane);
  std::string args = fmt::format(R"("measured_seconds":{:.9g})", span.seconds);
  if (std::isfinite(span.predicted_seconds)) {
    args += fmt::format(R"(,"predicted_seconds":{:.9g})", span.predicted_seconds);
  }
  if (span.bytes > 0) {
    args += fmt::format(R"(,"bytes":{})", span.bytes);
    if (span.seconds > 0) {
      args += fmt::format(R"(,"gb_per_second":{:.4g})",
                          static_cast<double>(span.bytes) / span.seconds / 1e9);
    }
  }
  if (span.step > 0) args += fmt::format(R"(,"step":{})", span.step);
  put(fmt::format(
      R"({{"name":{},"cat":{},"ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{{}}}}})",
      quoted(span.name), quoted(span.lane), kProcess, tid, micros(span.start_seconds),
      span.seconds * 1e6, args));
}

void TraceWriter::counter(std::string_view name, double at_seconds, double value) {
  const std::lock_guard lock(mutex_);
  if (fd_ < 0 || full_ || !std::isfinite(value)) return;
  put(fmt::format(R"({{"name":{},"ph":"C","pid":{},"ts":{:.3f},"args":{{"value":{:.9g}}}}})",
                  quoted(name), kProcess, micros(at_seconds), value));
}

// Every event but the first is preceded by its comma: the file is right at every event border but
// for the bracket.
void TraceWriter::put(const std::string& event) {
  const bool first = written_ == 0 && buffer_.size() <= 2;
  buffer_ += first ? event : ",\n" + event;
  if (written_ + buffer_.size() >= max_bytes_ && !full_) {
    full_ = true;
    buffer_ += fmt::format(
        ",\n{{\"name\":\"trace_full\",\"ph\":\"M\",\"pid\":{},\"args\":{{\"max_bytes\":{}}}}}",
        kProcess, max_bytes_);
    log::warning(str(path_, " reached its limit of ", format_bytes(max_bytes_),
                     "; later ops are not traced"));
  }
  if (buffer_.size() >= kTraceBuffer) write_out();
}

void TraceWriter::write_out() {
  const int error = write_all(fd_, buffer_);
  written_ += buffer_.size();
  buffer_.clear();
  if (error == 0) return;
  // A trace is not worth a run: say it and go on without.
  ::close(fd_);
  fd_ = -1;
  log::warning(str("writing ", path_, ": ", std::strerror(error), "; tracing stops"));
}

void TraceWriter::flush() {
  const std::lock_guard lock(mutex_);
  if (fd_ >= 0) write_out();
}

void TraceWriter::close() {
  const std::lock_guard lock(mutex_);
  if (fd_ < 0) return;
  buffer_ += "\n]\n";
  write_out();
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

}  // namespace zinf::observe
