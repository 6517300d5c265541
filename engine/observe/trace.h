// A timeline of ops in Chrome's trace-event JSON (array form): open it in ui.perfetto.dev or
// chrome://tracing. One track per lane. Events go out in whole lines, so a killed run leaves a file
// that the viewers open (they do not need the closing bracket); close() makes it strict JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "engine/base/bytes.h"
#include "engine/observe/step_record.h"

namespace zinf::observe {

struct TraceSpan {
  std::string_view lane;     // track; also "nvme_read of <drive>", "step", ...
  std::string_view name;     // "forward layer 3", "read layer 3 weights"
  double start_seconds = 0;  // of now_seconds()
  double seconds = 0;        // measured: from issue to completion
  Bytes bytes = 0;           // 0: not shown
  double predicted_seconds = kUnknown;
  std::uint64_t step = 0;  // 0: not shown
};

// Thread-safe: lanes may call from their own threads. Memory stays under kTraceBuffer plus one
// event; the file stops growing at max_bytes (the last event says so). Times are kept relative to
// the first span.
class TraceWriter {
 public:
  // Creates or replaces the file, mode 0600. Throws Error(kFailed).
  explicit TraceWriter(const std::string& path, Bytes max_bytes = 512 * kMiB);
  ~TraceWriter();  // closes; errors are logged
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  void span(const TraceSpan& span);
  // A number over time, drawn as a graph: bytes in use per tier, for example.
  void counter(std::string_view name, double at_seconds, double value);
  void flush();
  void close();  // flushes and writes the end; later calls do nothing

 private:
  double micros(double seconds);
  int track(std::string_view lane);
  void put(const std::string& event);
  void write_out();

  std::mutex mutex_;
  std::string path_;
  int fd_ = -1;
  Bytes max_bytes_;
  Bytes written_ = 0;
  bool full_ = false;
  double origin_ = kUnknown;
  std::string buffer_;
  std::map<std::string, int, std::less<>> tracks_;
};

constexpr std::size_t kTraceBuffer = 64 * 1024;

}  // namespace zinf::observe
