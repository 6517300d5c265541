#include "nvme/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/error.h"
#include "nvme/device_info.h"

namespace zinf::nvme {

namespace {

constexpr double kAsGood = 0.02, kAsGoodAtMost = 0.1;  // see choose_row()
constexpr std::size_t kFinalists = 3, kMostFinalists = 6;
constexpr int kEngineRounds = 3;
constexpr double kShortest = 0.1;  // seconds of a measurement that still tells something
constexpr double kLongest = 0.4;   // seconds for one depth
constexpr double kSetup = 0.07;    // of each: buffers, ring, thread
constexpr double kFioSetup = 0.6;  // of its process
// Sustained: writing goes on until a window's rate is so much below the best and this close to that
// of the window before, or for so long.
constexpr double kWindow = 4;
constexpr double kFell = 0.8;
constexpr double kSettled = 0.05;
constexpr double kMostSustained = 60;

double fio_seconds(const TuneOptions& options) {
  return options.fio_rounds * (2 * std::max(1.0, options.seconds) + kFioSetup);
}

class Repeats {
 public:
  void add(double value) { values_.push_back(value); }
  Measured summary() const {
    std::vector<double> sorted = values_;
    std::sort(sorted.begin(), sorted.end());
    return {sorted[sorted.size() / 2], sorted.front(), sorted.back(),
            static_cast<int>(sorted.size())};
  }

 private:
  std::vector<double> values_;
};

// Mixed runs of one row, as they come in.
struct Samples {
  Repeats mixed, cpu, p99;
  void add(const BenchResult& result) {
    mixed.add(result.gb_per_second);
    cpu.add(result.cpu_seconds_per_gb);
    p99.add(result.p99_ms);
  }
  void fill(TuneRow& row) const {
    row.mixed = mixed.summary();
    row.cpu_seconds_per_gb = cpu.summary().median;
    row.p99_ms = p99.summary().median;
  }
};

class Tuner {
 public:
  Tuner(const TuneOptions& options, const std::function<void(const TuneRow&)>& on_row,
        const std::function<void(const std::string&)>& on_wait)
      : options_(options),
        on_row_(on_row),
        on_wait_(on_wait),
        start_(options.clock()),
        bench_(options.directory, options.file_bytes, false, options.wrap_engine) {}

  TuneReport run() {
    report_.warnings = directory_warnings(options_.directory);
    report_.device = describe_device();
    if (options_.sustained) {
      settle();
      start_ = options_.clock();
    }
    const EngineKind best = pick_engine();
    sweep(best);
    finals();
    finish();
    return std::move(report_);
  }

 private:
  BenchOptions bench_options(Traffic traffic, EngineKind engine, Bytes block, int depth) const {
    BenchOptions options;
    options.traffic = traffic;
    options.engine = engine;
    options.block_size = block;
    options.depth = depth;
    options.seconds = options_.seconds;
    options.read_share = options_.read_share;
    options.memory_load = options_.under_load;
    options.wrap_engine = options_.wrap_engine;
    options.clock = options_.clock;
    return options;
  }

  void wait_for(const std::string& what) const {
    if (on_wait_) on_wait_(what);
  }

  void settle() {
    BenchOptions options = bench_options(Traffic::kWrite, EngineKind::kAuto, kMiB, 32);
    options.seconds = kWindow;
    Settled& settled = report_.settled.emplace();
    wait_for("filling the drive's write cache");
    while (settled.seconds < kMostSustained) {
      const BenchResult result = bench_.run(options);
      const double before = settled.gb_per_second;
      settled.gb_per_second = result.gb_per_second;
      settled.best_gb_per_second = std::max(settled.best_gb_per_second, result.gb_per_second);
      settled.seconds += result.seconds;
      settled.bytes += result.bytes_written;
      settled.fell = settled.gb_per_second < kFell * settled.best_gb_per_second;
      if (settled.fell && std::abs(settled.gb_per_second / before - 1) < kSettled) return;
      wait_for(
          fmt::format("filling the drive's write cache, {:.0f} s of at most {:.0f}: {:.2f} GB/s",
                      settled.seconds, kMostSustained, settled.gb_per_second));
    }
  }

  double spent() const { return options_.clock() - start_; }
  // Fio's rounds are still to come.
  bool out_of_time() const { return spent() > options_.most_seconds - fio_seconds(options_); }

  // Mixed, the engines in turn: rows of the first pass.
  void scout(const std::vector<EngineKind>& engines, Bytes block, int depth, int rounds) {
    std::vector<Samples> samples(engines.size());
    for (int round = 0; round < rounds; ++round) {
      for (std::size_t i = 0; i < engines.size(); ++i) {
        const BenchResult result =
            bench_.run(bench_options(Traffic::kMixed, engines[i], block, depth));
        samples[i].add(result);
        report_.huge_pages = result.huge_pages;
      }
    }
    for (std::size_t i = 0; i < engines.size(); ++i) {
      TuneRow row;
      row.engine = engine_kind_name(engines[i]);
      row.block_size = block;
      row.depth = depth;
      samples[i].fill(row);
      report_.rows.push_back(row);
      if (on_row_) on_row_(row);
    }
  }

  EngineKind pick_engine() {
    const Bytes block =
        std::clamp<Bytes>(kMiB, options_.block_sizes.front(), options_.block_sizes.back());
    const int depth = std::clamp(32, options_.depths.front(), options_.depths.back());
    std::vector<EngineKind> available;
    for (const EngineKind engine : options_.engines) {
      const std::string why = why_unavailable(engine, depth);
      if (why.empty()) {
        available.push_back(engine);
      } else {
        report_.skipped.push_back(fmt::format("{}: {}", engine_kind_name(engine), why));
      }
    }
    scout(available, block, depth, kEngineRounds);
    const int best = choose_row(report_.rows);
    if (best < 0)
      throw Error(ErrorKind::kFailed,
                  "none of the engines to tune is available: " + report_.skipped.front());
    return parse_engine_kind(report_.rows[static_cast<std::size_t>(best)].engine);
  }

  void sweep(EngineKind engine) {
    // A measurement moves a whole depth at least, which a slow drive takes long for.
    double rate = 0;
    for (const TuneRow& row : report_.rows) rate = std::max(rate, row.mixed.median * 1e9);
    const Bytes most_in_flight =
        std::min(options_.most_in_flight, static_cast<Bytes>(rate * kLongest));
    for (const Bytes block : options_.block_sizes) {
      for (const int depth : options_.depths) {
        const bool known =
            std::any_of(report_.rows.begin(), report_.rows.end(), [&](const TuneRow& row) {
              return row.engine == engine_kind_name(engine) && row.block_size == block &&
                     row.depth == depth;
            });
        if (spent() > options_.most_seconds / 2) return;
        if (!why_unavailable(engine, depth).empty()) continue;  // libaio's slots are few
        const Bytes in_flight = block * static_cast<Bytes>(depth);
        if (!known && in_flight <= most_in_flight && 4 * in_flight <= options_.file_bytes)
          scout({engine}, block, depth, 1);
      }
    }
  }

  // All three kinds of traffic in turn, so that a drift of the drive meets them alike.
  void measure(TuneRow& row) {
    const EngineKind engine = parse_engine_kind(row.engine);
    Repeats read, write;
    Samples mixed;
    for (int repeat = 1; repeat <= options_.most_repeats; ++repeat) {
      read.add(bench_.run(bench_options(Traffic::kRead, engine, row.block_size, row.depth))
                   .gb_per_second);
      write.add(bench_.run(bench_options(Traffic::kWrite, engine, row.block_size, row.depth))
                    .gb_per_second);
      mixed.add(bench_.run(bench_options(Traffic::kMixed, engine, row.block_size, row.depth)));
      mixed.fill(row);
      row.read = read.summary();
      row.write = write.summary();
      const double worst = std::max({row.read.spread(), row.write.spread(), row.mixed.spread()});
      if (repeat >= options_.least_repeats && worst <= options_.spread) break;
      if (out_of_time()) break;
    }
    if (on_row_) on_row_(row);
  }

  void finals() {
    std::vector<std::size_t> order(report_.rows.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return report_.rows[a].mixed.median > report_.rows[b].mixed.median;
    });
    order.resize(std::min(order.size(), kFinalists));
    // The cheapest of those that looked good enough takes part as well: one scouting run is a
    // coarse judge.
    const auto cheapest = static_cast<std::size_t>(choose_row(report_.rows));
    if (std::find(order.begin(), order.end(), cheapest) == order.end()) order.push_back(cheapest);
    std::vector<TuneRow> finalists;
    std::vector<std::size_t> places;
    const auto take = [&](std::size_t index) {
      measure(report_.rows[index]);
      finalists.push_back(report_.rows[index]);
      places.push_back(index);
    };
    for (const std::size_t index : order) {
      if (finalists.empty() || !out_of_time()) take(index);
    }
    // Those may have been lucky when they were scouted.
    while (finalists.size() < kMostFinalists && !out_of_time()) {
      const int next = next_finalist(report_.rows);
      if (next < 0) break;
      take(static_cast<std::size_t>(next));
    }
    report_.rows[places[static_cast<std::size_t>(choose_row(finalists))]].chosen = true;
  }

  void finish() {
    const TuneRow& row = *std::find_if(report_.rows.begin(), report_.rows.end(),
                                       [](const TuneRow& r) { return r.chosen; });
    NvmeProfile& profile = report_.profile;
    profile.engine = parse_engine_kind(row.engine);
    profile.block_size = row.block_size;
    profile.depth = row.depth;
    profile.read_gb_per_second = row.read.median;
    profile.write_gb_per_second = row.write.median;
    profile.mixed_gb_per_second = row.mixed.median;
    const DeviceInfo device = device_of(options_.directory);
    profile.device = device.model.empty() ? device.name : device.model;
    profile.file_system = bench_.facts().file_system;
    profile.direct = bench_.facts().direct;
    compare_with_fio(row);
    report_.bytes_written += bench_.bytes_written();
  }

  void compare_with_fio(const TuneRow& row) {
    BenchOptions options =
        bench_options(Traffic::kMixed, parse_engine_kind(row.engine), row.block_size, row.depth);
    options.memory_load = false;  // fio has none
    options.seconds = std::max(1.0, options.seconds);
    report_.fio_line = fio_command(bench_, options);
    if (options_.fio_rounds == 0) return;
    Repeats fio, zinf, ratio;
    for (int round = 0; round < options_.fio_rounds; ++round) {
      if (round > 0 && spent() > options_.most_seconds) break;
      wait_for(fmt::format("beside fio, round {} of {}", round + 1, options_.fio_rounds));
      const FioResult run = run_fio(bench_, options);
      report_.why_no_fio = run.why_not;
      if (!run.why_not.empty()) return;
      const double theirs = run.gb_per_second;
      report_.bytes_written +=
          static_cast<Bytes>(theirs * 1e9 * options.seconds * (1 - options.read_share));
      const double ours = bench_.run(options).gb_per_second;
      fio.add(theirs);
      zinf.add(ours);
      ratio.add(ours / theirs);
    }
    report_.fio =
        FioComparison{fio.summary().median, zinf.summary().median, ratio.summary().median};
  }

  std::string describe_device() const {
    const DeviceInfo device = device_of(options_.directory);
    std::string text = device.model.empty() ? device.name : device.model;
    const auto add = [&text](const std::string& part) {
      text += (text.empty() ? "" : ", ") + part;
    };
    if (!device.link.empty()) add(device.link);
    if (device.logical_block > 0) add(fmt::format("blocks of {} B", device.logical_block));
    if (device.largest_request > 0)
      add(fmt::format("requests up to {}", format_bytes(device.largest_request)));
    if (!device.scheduler.empty()) add(fmt::format("scheduler {}", device.scheduler));
    if (device.celsius) add(fmt::format("{:.0f} degrees Celsius", *device.celsius));
    return text.empty() ? "no block device" : text;
  }

  const TuneOptions& options_;
  const std::function<void(const TuneRow&)>& on_row_;
  const std::function<void(const std::string&)>& on_wait_;
  double start_;
  DriveBench bench_;
  TuneReport report_;
};

}  // namespace

double tune_needs_seconds(const TuneOptions& options) {
  const auto scouts =
      options.engines.size() * kEngineRounds + options.block_sizes.size() * options.depths.size();
  const double finals = static_cast<double>((kFinalists + 1) * 3) * options.least_repeats;
  return (static_cast<double>(scouts) + finals) * (options.seconds + kSetup) + fio_seconds(options);
}

TuneOptions paced(TuneOptions options, std::size_t folders) {
  options.most_seconds /= static_cast<double>(folders);
  if (tune_needs_seconds(options) <= options.most_seconds) return options;
  options.fio_rounds = std::min(options.fio_rounds, 1);
  const double runs =
      (tune_needs_seconds(options) - fio_seconds(options)) / (options.seconds + kSetup);
  const double each = (options.most_seconds - fio_seconds(options)) / runs - kSetup;
  options.seconds = std::clamp(each, std::min(kShortest, options.seconds), options.seconds);
  return options;
}

Bytes tune_will_write(const TuneOptions& options, double write_gb_per_second) {
  double seconds = 0;
  const double scouts = static_cast<double>(options.engines.size() * kEngineRounds +
                                            options.block_sizes.size() * options.depths.size());
  seconds += scouts * options.seconds * (1 - options.read_share);
  seconds += static_cast<double>(kMostFinalists) * options.most_repeats * options.seconds *
             (2 - options.read_share);
  seconds += 2 * options.fio_rounds * std::max(1.0, options.seconds) * (1 - options.read_share);
  if (options.sustained) seconds += kMostSustained;
  return options.file_bytes + static_cast<Bytes>(seconds * write_gb_per_second * 1e9);
}

TuneReport tune(const TuneOptions& options, const std::function<void(const TuneRow&)>& on_row,
                const std::function<void(const std::string&)>& on_wait) {
  ZINF_CHECK(!options.engines.empty() && !options.block_sizes.empty() && !options.depths.empty(),
             "nothing to tune");
  return Tuner(options, on_row, on_wait).run();
}

int choose_row(const std::vector<TuneRow>& rows) {
  Measured best;
  for (const TuneRow& row : rows) {
    if (row.mixed.median > best.median) best = row.mixed;
  }
  int chosen = -1;
  const auto in_flight = [&](int i) {
    return rows[static_cast<std::size_t>(i)].block_size *
           static_cast<Bytes>(rows[static_cast<std::size_t>(i)].depth);
  };
  for (int i = 0; i < static_cast<int>(rows.size()); ++i) {
    const TuneRow& row = rows[static_cast<std::size_t>(i)];
    const double tolerance =
        std::clamp(std::max(best.spread(), row.mixed.spread()) / 2, kAsGood, kAsGoodAtMost);
    if (row.mixed.median <= 0 || row.mixed.median < (1 - tolerance) * best.median) continue;
    const bool cheaper =
        chosen < 0 || in_flight(i) < in_flight(chosen) ||
        (in_flight(i) == in_flight(chosen) &&
         row.cpu_seconds_per_gb < rows[static_cast<std::size_t>(chosen)].cpu_seconds_per_gb);
    if (cheaper) chosen = i;
  }
  return chosen;
}

int next_finalist(const std::vector<TuneRow>& rows) {
  double best = 0;
  int next = -1;
  for (int i = 0; i < static_cast<int>(rows.size()); ++i) {
    const TuneRow& row = rows[static_cast<std::size_t>(i)];
    if (row.read.repeats > 0) {
      best = std::max(best, row.mixed.median);
    } else if (next < 0 || row.mixed.median > rows[static_cast<std::size_t>(next)].mixed.median) {
      next = i;
    }
  }
  return next >= 0 && rows[static_cast<std::size_t>(next)].mixed.median > best ? next : -1;
}

std::string rate_bar(double value, double best, int width) {
  const int filled =
      best > 0 ? static_cast<int>(std::lround(std::clamp(value / best, 0.0, 1.0) * width)) : 0;
  return std::string(static_cast<std::size_t>(filled), '=') +
         std::string(static_cast<std::size_t>(width - filled), '-');
}

}  // namespace zinf::nvme
