// Measures what a directory's drive gives to the traffic of training: long sequential reads and
// writes, alone and mixed, at a fixed block size and depth. Direct I/O where the file system has
// it; never the page cache passed off as a drive.
//
//   DriveBench bench("/nvme", 1 * kGiB);                    // one scratch file, which has no name
//   BenchResult r = bench.run({.traffic = Traffic::kMixed});
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/base/clock.h"
#include "nvme/directory.h"
#include "nvme/io_engine.h"
#include "nvme/swap_file.h"

namespace zinf::nvme {

enum class Traffic { kRead, kWrite, kMixed };

struct BenchOptions {
  Traffic traffic = Traffic::kRead;
  EngineKind engine = EngineKind::kAuto;
  Bytes block_size = kMiB;
  int depth = 32;
  double seconds = 0.5;             // how long blocks are issued
  double read_share = 14.0 / 26.0;  // of mixed traffic: what the optimizer reads of all it moves
  bool huge_pages = true;
  bool memory_load = false;  // optimizer-like memory traffic on one core beside it
  // For tests: drives of a given speed on a clock of their own.
  EngineWrapper wrap_engine = {};
  std::function<double()> clock = now_seconds;
};

struct BenchResult {
  std::string engine;
  bool direct = false;
  bool huge_pages = false;
  Bytes block_size = 0;
  int depth = 0;
  Bytes bytes_read = 0;
  Bytes bytes_written = 0;
  double seconds = 0;
  double gb_per_second = 0;       // both directions together, 10^9 bytes
  double cpu_seconds_per_gb = 0;  // of the whole process, without the memory load
  double p50_ms = 0;              // of single blocks, from submission to completion
  double p99_ms = 0;
};

class DriveBench {
 public:
  // Checks space, creates the file and writes it once, so that later writes find their blocks
  // allocated and reads find data. `keep_file`: uses the file kKeptFile, which may be there
  // already, and leaves it for the next. `wrap_engine`: of that writing, for tests. Throws Error.
  static constexpr const char* kKeptFile = "zinf-bench-kept.tmp";
  DriveBench(const std::string& directory, Bytes file_bytes, bool keep_file = false,
             const EngineWrapper& wrap_engine = {});
  DriveBench(const DriveBench&) = delete;
  DriveBench& operator=(const DriveBench&) = delete;

  BenchResult run(const BenchOptions& options);  // throws Error
  const DirectoryFacts& facts() const { return facts_; }
  // A file that is not kept had this name only while it was made.
  const std::string& path() const { return file_->path(); }
  std::string open_path() const;  // by which other processes of this user find it, kept or not
  Bytes file_bytes() const { return file_->bytes(); }
  Bytes bytes_written() const { return bytes_written_; }  // so far, in all

 private:
  DirectoryFacts facts_;
  bool keep_file_ = false;
  std::optional<SwapFile> file_;
  Bytes bytes_written_ = 0;
};

// The fio command that does the same on the same file, its buffers on huge pages by way of the C
// library; mixed traffic as rw with its read percentage. For a shell.
std::string fio_command(const DriveBench& bench, const BenchOptions& options);

struct FioResult {
  double gb_per_second = 0;  // both directions together
  std::string why_not;       // no rate: not installed, or failed
};
FioResult run_fio(const DriveBench& bench, const BenchOptions& options);

}  // namespace zinf::nvme
