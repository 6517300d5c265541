// Learning-rate schedules: the rate of an update as a pure function of its number. Updates count
// from 1; a step that is skipped (overflow) is no update and does not move the schedule.
//
// constant, linear, cosine: as transformers' schedules of these names. With k = update - 1:
//   k < warmup_steps: peak * k / warmup_steps; from there on peak, or down to min_lr at k =
//   total_steps, along a line or half a cosine; min_lr afterwards.
// WarmupLR, WarmupDecayLR, WarmupCosineLR: as DeepSpeed's, whose first update runs before the
// schedule's first step. With i = update - 2 and W = max(2, warmup_steps), so that warm-ups of 0, 1
// and 2 are the same:
//   update 1:  min_lr (WarmupCosineLR: 0)
//   i < W:     min_lr + (peak - min_lr) * gamma, gamma = i / W (linear) or log(i + 1) / log(W)
//   (log, the default) i >= W:    WarmupLR: peak. WarmupDecayLR: gamma = (total - i) / (total - W),
//   never below 0. WarmupCosineLR works with ratios of peak: warmup_min_ratio + (1 -
//   warmup_min_ratio) * gamma, then cos_min_ratio + (1 - cos_min_ratio) * (1 + cos(pi * min(1, (i -
//   W + 1) / (total - W)))) / 2.
// Pinned, peak 1, min 0, warm-up 2, total 6, updates 1 to 8, WarmupDecayLR:
//   linear 0, 0, 0.5, 1, 0.75, 0.5, 0.25, 0      log 0, 0, 1, 1, 0.75, 0.5, 0.25, 0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace zinf {

enum class ScheduleType { kConstant, kLinear, kCosine, kWarmup, kWarmupDecay, kWarmupCosine };
enum class WarmupType { kLog, kLinear };

struct LrSchedule {
  ScheduleType type = ScheduleType::kConstant;
  double peak = 0.0;    // the optimizer's rate, unless the schedule names one (warmup_max_lr)
  double min_lr = 0.0;  // warmup_min_lr; for linear and cosine the end
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;               // not used by constant and WarmupLR
  WarmupType warmup_type = WarmupType::kLog;  // DeepSpeed's three
  double warmup_min_ratio = 0.0;              // WarmupCosineLR
  double cos_min_ratio = 0.0001;              // WarmupCosineLR

  // Throws Error(kUsage): a negative number, no total where one is needed, a warm-up above the
  // total (the peak would never be reached).
  void validate() const;

  // update >= 1. Never negative.
  double rate(std::int64_t update) const;
};

// "constant", "linear", "cosine", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR".
std::string_view name(ScheduleType type);
std::optional<ScheduleType> parse_schedule_type(std::string_view text);
// "log", "linear".
std::string_view name(WarmupType type);
std::optional<WarmupType> parse_warmup_type(std::string_view text);

}  // namespace zinf
