#include "engine/observe/slow_lane.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/observe/format.h"

namespace zinf::observe {

namespace {

constexpr std::size_t kWindow = 100;
constexpr std::size_t kLeastHistory = 2;  // from step 3 on
constexpr int kCalmSteps = 10;

template <typename Value>
double median_of(const std::deque<StepRecord>& window, const Value& value) {
  std::vector<double> values;
  values.reserve(window.size());
  for (const StepRecord& record : window) values.push_back(value(record));
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// The lane whose stalls grew most over their medians; where no stall grew by half of what a lane's
// own busy time did, that lane.
struct Culprit {
  std::string lane;
  double grew_by = 0;
  bool stalled = false;
};

Culprit find_culprit(const StepRecord& record, const std::deque<StepRecord>& window) {
  Culprit stall, busy;
  for (std::size_t i = 0; i < kLanes; ++i) {
    const double stall_growth =
        record.stall_seconds.values[i] -
        median_of(window, [i](const StepRecord& r) { return r.stall_seconds.values[i]; });
    const double busy_growth =
        record.lane_busy.values[i] * record.seconds -
        median_of(window, [i](const StepRecord& r) { return r.lane_busy.values[i] * r.seconds; });
    if (stall_growth > stall.grew_by) stall = {std::string(kLaneNames[i]), stall_growth, true};
    if (busy_growth > busy.grew_by) busy = {std::string(kLaneNames[i]), busy_growth, false};
  }
  return stall.grew_by > 0 && 2 * stall.grew_by >= busy.grew_by ? stall : busy;
}

std::string slow_step_text(const StepRecord& record, double median, const Culprit& culprit) {
  std::string text = fmt::format("step {} took {}, {:.1f} times the running median of {}",
                                 record.step, format_step_time(record.seconds),
                                 record.seconds / median, format_step_time(median));
  if (culprit.lane.empty()) {
    return text + (record.bottleneck.empty()
                       ? "; no lane was busier or waited for longer than usual"
                       : fmt::format("; bottleneck lane: {}", record.bottleneck));
  }
  return text + fmt::format("; slow lane: {} ({} {} more than usual)", culprit.lane,
                            culprit.stalled ? "waited for" : "busy",
                            format_step_time(culprit.grew_by));
}

}  // namespace

std::vector<std::string> SlowLaneDetector::observe(const StepRecord& record,
                                                   std::span<const LaneRate> rates) {
  std::vector<std::string> texts;
  ++seen_;
  if (!record.redo) judge_step(record, texts);
  if (seen_ >= kFirstJudged) {
    for (const LaneRate& rate : rates) judge_rate(rate, texts);
  }
  return texts;
}

void SlowLaneDetector::judge_step(const StepRecord& record, std::vector<std::string>& texts) {
  if (window_.size() >= kLeastHistory) {
    const double median = median_of(window_, [](const StepRecord& r) { return r.seconds; });
    if (median > 0 && record.seconds > kSlowStep * median) {
      if (!in_episode_)
        texts.push_back(slow_step_text(record, median, find_culprit(record, window_)));
      in_episode_ = true;
      calm_ = 0;
    } else if (in_episode_ && ++calm_ >= kCalmSteps) {
      in_episode_ = false;
    }
  }
  window_.push_back(record);
  if (window_.size() > kWindow) window_.pop_front();
}

void SlowLaneDetector::judge_rate(const LaneRate& rate, std::vector<std::string>& texts) {
  const bool usable = rate.expected > 0 && rate.busy_seconds >= kLeastBusySeconds &&
                      std::isfinite(rate.expected) && std::isfinite(rate.seen) && rate.seen >= 0;
  if (!usable) return;
  LaneState& state = lanes_[rate.name];
  const double ratio = rate.seen / rate.expected;
  state.ratio_sum += ratio;
  ++state.ratios;
  state.low_in_a_row = ratio < kLowRate ? state.low_in_a_row + 1 : 0;
  if (state.low_in_a_row >= kLowSteps && !state.said_low) {
    state.said_low = true;
    texts.push_back(
        fmt::format("{} runs at {:.2f} {}, {} of the {:.2f} {} in the hardware profile, for {} "
                    "steps; likely causes: thermal "
                    "throttling, a full write cache, other processes, a stale profile (measure "
                    "again: zinf tune)",
                    rate.name, rate.seen, rate.unit, format_percent(ratio), rate.expected,
                    rate.unit, kLowSteps));
  }
  if (ratio > kHighRate && !state.said_high) {
    state.said_high = true;
    texts.push_back(fmt::format(
        "{} runs at {:.2f} {}, {} of the {:.2f} {} in the hardware profile: the profile is stale "
        "and the plan may not "
        "be the best (measure again: zinf tune)",
        rate.name, rate.seen, rate.unit, format_percent(ratio), rate.expected, rate.unit));
  }
}

double SlowLaneDetector::profile_ratio(const std::string& name) const {
  const auto found = lanes_.find(name);
  if (found == lanes_.end() || found->second.ratios == 0) return kUnknown;
  return found->second.ratio_sum / static_cast<double>(found->second.ratios);
}

}  // namespace zinf::observe
