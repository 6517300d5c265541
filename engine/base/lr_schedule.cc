#include "engine/base/lr_schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "engine/base/error.h"
#include "engine/base/str.h"

namespace zinf {

namespace {

constexpr std::array<std::string_view, 6> kTypes = {"constant", "linear",        "cosine",
                                                    "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"};

bool needs_total(ScheduleType type) {
  return type != ScheduleType::kConstant && type != ScheduleType::kWarmup;
}

// constant, linear, cosine: the share of the way from min_lr to the peak, after the warm-up.
double share_after_warmup(const LrSchedule& s, std::int64_t k) {
  if (s.type == ScheduleType::kConstant) return 1.0;
  const double length =
      static_cast<double>(std::max<std::int64_t>(1, s.total_steps - s.warmup_steps));
  const double progress = std::min(1.0, static_cast<double>(k - s.warmup_steps) / length);
  if (s.type == ScheduleType::kLinear) return 1.0 - progress;
  return progress == 1.0 ? 0.0 : 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

double plain_rate(const LrSchedule& s, std::int64_t update) {
  const std::int64_t k = update - 1;
  if (k < s.warmup_steps)
    return s.peak * static_cast<double>(k) / static_cast<double>(s.warmup_steps);
  const double end = s.type == ScheduleType::kConstant ? 0.0 : s.min_lr;
  return end + (s.peak - end) * share_after_warmup(s, k);
}

double deepspeed_rate(const LrSchedule& s, std::int64_t update) {
  const bool cosine = s.type == ScheduleType::kWarmupCosine;
  if (update == 1) return cosine ? 0.0 : s.min_lr;
  const std::int64_t i = update - 2;
  const std::int64_t warmup = std::max<std::int64_t>(2, s.warmup_steps);
  const auto of = [&](double gamma) { return s.min_lr + (s.peak - s.min_lr) * gamma; };
  if (i < warmup) {
    const double gamma =
        s.warmup_type == WarmupType::kLinear
            ? static_cast<double>(i) / static_cast<double>(warmup)
            : std::log(static_cast<double>(i + 1)) / std::log(static_cast<double>(warmup));
    return cosine ? s.peak * (s.warmup_min_ratio + (1.0 - s.warmup_min_ratio) * gamma) : of(gamma);
  }
  if (s.type == ScheduleType::kWarmup) return s.peak;
  const double length = static_cast<double>(std::max<std::int64_t>(1, s.total_steps - warmup));
  if (!cosine) return of(std::max(0.0, static_cast<double>(s.total_steps - i) / length));
  const double progress = std::min(1.0, static_cast<double>(i - warmup + 1) / length);
  const double wave = (1.0 + std::cos(std::numbers::pi * progress)) / 2.0;
  return s.peak * (s.cos_min_ratio + (1.0 - s.cos_min_ratio) * wave);
}

void refuse_negative(std::string_view what, double value) {
  if (value >= 0.0 && std::isfinite(value)) return;
  throw Error(ErrorKind::kUsage, str("learning-rate schedule: ", what,
                                     " must be zero or above and finite, found ", value));
}

}  // namespace

void LrSchedule::validate() const {
  refuse_negative("the peak rate", peak);
  refuse_negative("min_lr", min_lr);
  refuse_negative("warmup_min_ratio", warmup_min_ratio);
  refuse_negative("cos_min_ratio", cos_min_ratio);
  refuse_negative("the number of warm-up steps", static_cast<double>(warmup_steps));
  if (!needs_total(type)) return;
  if (total_steps < 1) {
    throw Error(ErrorKind::kUsage,
                str("learning-rate schedule ", name(type),
                    ": the total number of steps must be 1 or more, found ", total_steps));
  }
  if (warmup_steps > total_steps) {
    throw Error(ErrorKind::kUsage,
                str("learning-rate schedule ", name(type), ": ", warmup_steps, " warm-up steps of ",
                    total_steps, " steps in all; the peak rate would never be reached"),
                "give fewer warm-up steps or a larger total; steps are optimizer updates, not "
                "micro-batches");
  }
}

double LrSchedule::rate(std::int64_t update) const {
  ZINF_CHECK(update >= 1, str("updates count from 1, found ", update));
  switch (type) {
    case ScheduleType::kConstant:
    case ScheduleType::kLinear:
    case ScheduleType::kCosine:
      return plain_rate(*this, update);
    default:
      return deepspeed_rate(*this, update);
  }
}

std::string_view name(ScheduleType type) { return kTypes[static_cast<std::size_t>(type)]; }

std::optional<ScheduleType> parse_schedule_type(std::string_view text) {
  const auto found = std::find(kTypes.begin(), kTypes.end(), text);
  if (found == kTypes.end()) return std::nullopt;
  return static_cast<ScheduleType>(found - kTypes.begin());
}

std::string_view name(WarmupType type) { return type == WarmupType::kLog ? "log" : "linear"; }

std::optional<WarmupType> parse_warmup_type(std::string_view text) {
  if (text == "log") return WarmupType::kLog;
  if (text == "linear") return WarmupType::kLinear;
  return std::nullopt;
}

}  // namespace zinf
