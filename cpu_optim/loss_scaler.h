// fp16's loss scale with DeepSpeed's keys and rules. Pure bookkeeping: the caller multiplies the
// loss by scale(), divides the gradient by it (StepScalars::gradient_factor) and reports whether
// all gradients were finite. An overflowed step changes no state and does not move the schedule.
//
// Dynamic (loss_scale 0): starts at 2^initial_scale_power. The first hysteresis - 1 overflows only
// use up hysteresis; every further one halves the scale, never below min_loss_scale. After
// `loss_scale_window` steps without overflow the scale doubles and hysteresis is full again
// (consecutive_hysteresis: after every good step). The window's first step counts as 0: the first
// growth, also the first after an overflow, comes after window + 1 good steps, later ones every
// window.
// Fixed (loss_scale > 0): stays as it is for ever.
//
//   start 65536, hysteresis 2, overflow twice   ->  65536, 32768
//   start 1024, window 2, good steps            ->  1024, 1024, 2048, 2048, 4096
#pragma once

#include <cstdint>

namespace zinf::optim {

// The fp16 section's keys and defaults.
struct LossScaleOptions {
  double loss_scale = 0.0;  // 0: dynamic
  int initial_scale_power = 16;
  std::int64_t loss_scale_window = 1000;
  int hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1.0;
  int max_skips_at_minimum =
      1;  // ours: overflows at the minimum, hysteresis used up, before the run stops

  // Throws Error(kUsage): naming key, value and what is expected.
  void validate() const;
};

// What a checkpoint keeps.
struct LossScaleState {
  double scale = 1.0;
  std::int64_t iteration = 0;       // steps seen, overflowed ones too
  std::int64_t last_overflow = -1;  // their number
  int hysteresis = 1;
  int skips_at_minimum = 0;  // in a row
  std::int64_t skipped = 0;  // in all
};

enum class StepVerdict {
  kApply,  // all finite: update
  kSkip,   // overflow: no update, the scale has been dealt with
  kStop,   // overflow at the minimum, again: something is wrong that no scale repairs; use bf16
};

class LossScaler {
 public:
  explicit LossScaler(const LossScaleOptions& options);
  // Resumes.
  LossScaler(const LossScaleOptions& options, const LossScaleState& state);

  // The scale of the step to come.
  double scale() const { return state_.scale; }
  bool is_dynamic() const { return options_.loss_scale == 0.0; }
  const LossScaleState& state() const { return state_; }

  // Closes a step.
  StepVerdict update(bool all_finite);

 private:
  void overflow();
  void good_step();

  LossScaleOptions options_;
  LossScaleState state_;
};

}  // namespace zinf::optim
