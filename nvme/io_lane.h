// One thread that owns an engine for one drive. Requests of any size are cut into blocks; up to
// `depth` blocks are in flight across requests, reads before writes (at most kReadsPerWrite blocks
// in a row while a write waits). There is no order between requests: a caller that needs one waits
// for on_done. A sync starts once every write submitted before it has completed.
//
// Every completion is examined: an error becomes an IoFailure with path, offset, length and errno;
// EAGAIN and EINTR are retried a bounded number of times; a short transfer goes on from an aligned
// offset; a read that meets the end of the file fails; a drive that answers nothing for
// `stall_seconds` fails everything that is waiting.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "engine/base/bytes.h"
#include "nvme/io_engine.h"
#include "nvme/io_request.h"

namespace zinf::nvme {

using FileId = int;

// An open file as the lane sees it; `descriptor` must stay open until the lane is gone.
struct LaneFile {
  int descriptor = -1;
  std::string path;
  Bytes alignment = 4096;  // of offsets, lengths and memory; power of two
};

struct IoRequest {
  FileId file = -1;
  std::uint64_t offset = 0;
  void* memory = nullptr;  // must stay valid until on_done
  Bytes bytes = 0;         // offset, bytes and memory: multiples of the file's alignment, checked
  bool is_write = false;
  IoCallback on_done;
};

struct LaneOptions {
  EngineOptions engine;
  Bytes block_size = kMiB;
  double stall_seconds = 120;        // 0: waits for ever
  double read_bytes_per_second = 0;  // throttle for tests and benchmarks; 0: none
  double write_bytes_per_second = 0;
  EngineWrapper wrap_engine;  // may be empty
};

struct LaneCounters {
  Bytes bytes_read = 0;
  Bytes bytes_written = 0;
  std::uint64_t read_requests = 0;
  std::uint64_t write_requests = 0;
  std::uint64_t syncs = 0;
  std::uint64_t retries = 0;  // EAGAIN, EINTR, short transfers
  std::uint64_t in_flight_peak = 0;
  double busy_seconds = 0;
  Bytes pinned_bytes =
      0;  // of the memory made known: locked by the engine, from the first request on
};

class IoLane {
 public:
  static constexpr int kReadsPerWrite = 3;

  explicit IoLane(LaneOptions options);  // throws Error when the engine is unavailable
  // Completes everything that was submitted.
  ~IoLane();
  IoLane(const IoLane&) = delete;
  IoLane& operator=(const IoLane&) = delete;

  // All of these: any thread, never block.
  FileId add_file(LaneFile file);
  // Memory that requests will lie in, for the engine to pin; valid until the lane is gone.
  void add_memory(std::span<std::byte> memory);
  void submit(IoRequest request);
  void sync(FileId file, IoCallback on_done);
  LaneCounters counters() const;

  const std::string& engine_name() const { return engine_name_; }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::string engine_name_;
};

}  // namespace zinf::nvme
