// One training step as people and scripts see it: a line of metrics.jsonl, the progress line, a
// point of each chart.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/bytes.h"

namespace zinf::observe {

// The resources whose time is reported. The order is the one of every table and file.
enum class Lane { kCompute, kH2d, kD2h, kNvmeRead, kNvmeWrite, kOptimizer, kNetwork };
constexpr std::size_t kLanes = 7;
constexpr std::array<std::string_view, kLanes> kLaneNames = {
    "compute", "h2d", "d2h", "nvme_read", "nvme_write", "optimizer", "network"};

constexpr std::string_view lane_name(Lane lane) {
  return kLaneNames[static_cast<std::size_t>(lane)];
}

// One value per lane: values[Lane::kH2d].
template <typename T>
struct PerLane {
  std::array<T, kLanes> values{};
  T& operator[](Lane lane) { return values[static_cast<std::size_t>(lane)]; }
  const T& operator[](Lane lane) const { return values[static_cast<std::size_t>(lane)]; }
};

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// A field that is kUnknown is written as null and left out of the progress line.
struct StepRecord {
  std::uint64_t step = 0;  // 1 is the first
  double loss = kUnknown;
  double lr = kUnknown;
  double grad_norm = kUnknown;  // before clipping
  double clip_factor = 1.0;
  std::uint64_t tokens = 0;         // input tokens without padding
  std::uint64_t target_tokens = 0;  // what the loss is averaged over
  double padding = 0;               // share of positions wasted, 0 to 1
  double seconds = 0;               // wall time of the step
  double tokens_per_second = 0;
  double efficiency = kUnknown;  // ideal time of the same program / measured
  std::string bottleneck;        // the lane that was busiest in this step; empty: unknown
  bool redo = false;             // the step ran its redo segment
  std::map<std::string, Bytes> peak_bytes;  // by tier: device, host, nvme, process
  PerLane<double> lane_busy;                // stand-alone time of the lane's ops / seconds, 0 to 1
  PerLane<double> stall_seconds;            // waiting, charged to the lane that was waited for
  Bytes nvme_read_bytes = 0;
  Bytes nvme_write_bytes = 0;
  // Written only where known.
  std::optional<double> eval_loss;              // an evaluation ran after this step
  std::optional<double> loss_scale;             // fp16: of this step
  std::optional<std::uint64_t> overflow_skips;  // fp16: steps skipped so far, this one included
  std::optional<double> model_flops;            // floating-point operations without recompute
  std::optional<double> executed_flops;         // with recompute
};

}  // namespace zinf::observe
