// Notices a run that is slower than it was, or than the hardware profile promised, and says which
// lane it is. Pure: facts of a step go in, texts for log::warning come out.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/observe/step_record.h"

namespace zinf::observe {

// A lane's (or a single drive's) rate over one step, beside the profile that the plan used.
struct LaneRate {
  std::string name;         // "nvme_read", or "nvme_read of <path>"
  std::string unit;         // "GB/s", "GFLOP/s", ...
  double expected = 0;      // in unit; 0: the profile does not tell
  double seen = 0;          // work / busy time, in unit
  double busy_seconds = 0;  // a rate over less than kLeastBusySeconds says nothing and is ignored
};

constexpr double kLeastBusySeconds = 0.002;
constexpr double kSlowStep = 1.3;  // of the running median of step times
constexpr double kLowRate = 0.85;  // of the profile, for kLowSteps steps in a row
constexpr double kHighRate = 1.15;
constexpr int kLowSteps = 3;
constexpr int kFirstJudged = 3;  // the first two steps of a process pay for warm-up

// One per process. One thread.
class SlowLaneDetector {
 public:
  // Called once per step, in order. Warnings:
  //  - a step that took over 1.3 times the median of up to 100 steps before it: once per episode
  //  (an episode ends after
  //    10 steps in a row within 1.3 times); a redo step is not judged. Names the lane whose stalls
  //    grew most;
  //  - a rate below 85 % for 3 steps in a row: once per name;
  //  - a rate above 115 %: once per name.
  std::vector<std::string> observe(const StepRecord& record, std::span<const LaneRate> rates);

  // Mean of seen / expected over the judged steps; kUnknown when there were none. summary.json's
  // profile_ratio.
  double profile_ratio(const std::string& name) const;

 private:
  struct LaneState {
    int low_in_a_row = 0;
    bool said_low = false;
    bool said_high = false;
    double ratio_sum = 0;
    std::uint64_t ratios = 0;
  };
  void judge_step(const StepRecord& record, std::vector<std::string>& texts);
  void judge_rate(const LaneRate& rate, std::vector<std::string>& texts);

  std::uint64_t seen_ = 0;
  std::deque<StepRecord> window_;
  bool in_episode_ = false;
  int calm_ = 0;
  std::map<std::string, LaneState> lanes_;
};

}  // namespace zinf::observe
