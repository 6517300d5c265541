// Finds the settings that a directory's drive likes best, by measuring. Prints nothing: rows come
// through a callback, and so does what is done between them.
//
//   const TuneOptions options{.directory = "/nvme"};
//   tune_will_write(options);                       // say it first
//   const TuneReport report = tune(options, [](const TuneRow& row) { ... });
//   save_profile(options.directory, report.profile);
//
// First pass: mixed traffic over engines in turn, then block sizes and depths of the best engine.
// Second pass: the best few, read, write and mixed, repeated until the spread is small, and more
// where the first pass had flattered them. The choice
// is the cheapest (fewest bytes in flight, then least processor time) of those whose mixed rate,
// the traffic of training, is as good as the best: within 2 %, or half the spread of the
// repetitions where they differ more (10 % at most). At the end fio, where it is installed, in turn
// with the choice.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/bytes.h"
#include "nvme/bench.h"
#include "nvme/profile.h"

namespace zinf::nvme {

struct TuneOptions {
  std::string directory;
  std::vector<EngineKind> engines = {EngineKind::kIoUring, EngineKind::kLibaio,
                                     EngineKind::kThreads};
  std::vector<Bytes> block_sizes = {256 * kKiB, 512 * kKiB, kMiB, 2 * kMiB, 4 * kMiB};
  std::vector<int> depths = {4, 8, 16, 32, 64};
  Bytes file_bytes = kGiB;
  Bytes most_in_flight = 128 * kMiB;  // pairs of block size and depth beyond this are left out
  double seconds = 0.4;               // of one measurement
  double spread = 0.05;               // (largest - smallest) / median that is small enough
  int least_repeats = 3;
  int most_repeats = 7;
  int fio_rounds = 3;
  // Of it all, then what is there decides: for slow drives. See paced() for several folders.
  double most_seconds = 100;
  bool sustained = false;   // first write until the drive's write cache is full: see Settled
  bool under_load = false;  // with optimizer-like memory traffic beside it
  double read_share = 14.0 / 26.0;
  // For tests: drives of a given speed on a clock of their own.
  EngineWrapper wrap_engine = {};
  std::function<double()> clock = now_seconds;
};

// Median and spread of repeated measurements.
struct Measured {
  double median = 0;
  double least = 0;
  double most = 0;
  int repeats = 0;
  double spread() const { return median > 0 ? (most - least) / median : 0; }
};

struct TuneRow {
  std::string engine;
  Bytes block_size = 0;
  int depth = 0;
  Measured mixed;                 // GB/s, both directions together
  Measured read, write;           // second pass only: repeats 0 before
  double cpu_seconds_per_gb = 0;  // of the mixed runs
  double p99_ms = 0;
  bool chosen = false;
};

// fio and zinf in turn, with the same settings and no memory traffic beside them.
struct FioComparison {
  double fio_gb_per_second = 0;  // medians
  double zinf_gb_per_second = 0;
  double ratio = 0;  // zinf to fio, median of the pairs
};

// The writing before the measurements of `sustained`: until the rate has fallen and is steady
// again, or for a minute. A drive whose rate does not fall has no write cache, or a larger one.
struct Settled {
  double best_gb_per_second = 0;  // the best of 4 seconds
  double gb_per_second = 0;       // the last 4 seconds
  Bytes bytes = 0;
  double seconds = 0;
  bool fell = false;
};

struct TuneReport {
  std::vector<TuneRow> rows;  // in the order measured
  NvmeProfile profile;
  std::vector<std::string> skipped;   // engines that are unavailable, with the reason
  std::vector<std::string> warnings;  // of the directory
  std::string device;                 // "model, link, block size, temperature" as far as known
  std::string fio_line;               // reproduces the chosen mixed measurement
  std::optional<FioComparison> fio;   // where fio is installed
  std::string why_no_fio;             // else: why there is none
  std::optional<Settled> settled;     // with `sustained`
  bool huge_pages = false;
  Bytes bytes_written = 0;  // by fio as well, as its rate says
};

// The least time that tune() takes on a drive of ordinary speed: each setting once, the best few
// least_repeats times, fio.
double tune_needs_seconds(const TuneOptions& options);

// For each of so many folders, which share most_seconds: with shorter measurements, and fewer
// rounds of fio, where it does not fit.
TuneOptions paced(TuneOptions options, std::size_t folders);

// The most that tune() may write with these options, from the rate of a very fast drive's seconds.
Bytes tune_will_write(const TuneOptions& options, double write_gb_per_second = 7);

// Throws Error: unfit directory, no space, no engine, I/O errors. Leaves nothing but what the
// caller saves.
TuneReport tune(const TuneOptions& options, const std::function<void(const TuneRow&)>& on_row = {},
                const std::function<void(const std::string&)>& on_wait = {});

// The row to take, by the rule above; rows without a mixed median are left out. Empty list: -1.
int choose_row(const std::vector<TuneRow>& rows);

// The row to measure next in the second pass: the best of those that it has not measured, where
// that looked better than the best of those that it has; else -1.
int next_finalist(const std::vector<TuneRow>& rows);

// "====----" of `width` characters, for a table with a bar per row.
std::string rate_bar(double value, double best, int width);

}  // namespace zinf::nvme
