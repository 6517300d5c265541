#include "cpu_optim/loss_scaler.h"

#include <algorithm>
#include <cmath>

#include "engine/base/error.h"
#include "engine/base/str.h"

namespace zinf::optim {

namespace {

constexpr double kFactor = 2.0;

void require(bool holds, const char* key, const char* expected, double found) {
  if (!holds)
    throw Error(ErrorKind::kUsage, str("fp16.", key, ": expected ", expected, ", found ", found));
}

}  // namespace

void LossScaleOptions::validate() const {
  require(std::isfinite(loss_scale) && loss_scale >= 0.0, "loss_scale",
          "0 (dynamic) or a positive number", loss_scale);
  require(initial_scale_power >= 0 && initial_scale_power <= 32, "initial_scale_power", "0 to 32",
          initial_scale_power);
  require(loss_scale_window >= 1, "loss_scale_window", "1 or more",
          static_cast<double>(loss_scale_window));
  require(hysteresis >= 1, "hysteresis", "1 or more", hysteresis);
  require(std::isfinite(min_loss_scale) && min_loss_scale > 0.0, "min_loss_scale",
          "a positive number", min_loss_scale);
  require(max_skips_at_minimum >= 1, "max_skips_at_minimum", "1 or more", max_skips_at_minimum);
  if (loss_scale == 0.0) {
    require(min_loss_scale <= std::ldexp(1.0, initial_scale_power), "min_loss_scale",
            "no more than 2^initial_scale_power", min_loss_scale);
  }
}

LossScaler::LossScaler(const LossScaleOptions& options) : options_(options) {
  options_.validate();
  state_.scale = is_dynamic() ? std::ldexp(1.0, options_.initial_scale_power) : options_.loss_scale;
  state_.hysteresis = options_.hysteresis;
}

LossScaler::LossScaler(const LossScaleOptions& options, const LossScaleState& state)
    : LossScaler(options) {
  state_ = state;
}

StepVerdict LossScaler::update(bool all_finite) {
  const bool at_minimum =
      is_dynamic() && state_.scale <= options_.min_loss_scale && state_.hysteresis == 1;
  if (all_finite) {
    state_.skips_at_minimum = 0;
    if (is_dynamic()) good_step();
    ++state_.iteration;
    return StepVerdict::kApply;
  }
  ++state_.skipped;
  if (at_minimum) ++state_.skips_at_minimum;
  if (is_dynamic()) overflow();
  ++state_.iteration;
  return state_.skips_at_minimum >= options_.max_skips_at_minimum ? StepVerdict::kStop
                                                                  : StepVerdict::kSkip;
}

void LossScaler::overflow() {
  if (state_.hysteresis > 1) {
    --state_.hysteresis;
  } else {
    state_.scale = std::max(state_.scale / kFactor, options_.min_loss_scale);
  }
  state_.last_overflow = state_.iteration;
}

void LossScaler::good_step() {
  if (options_.consecutive_hysteresis) state_.hysteresis = options_.hysteresis;
  const std::int64_t stable = state_.iteration - state_.last_overflow - 1;
  if (stable <= 0 || stable % options_.loss_scale_window != 0) return;
  state_.hysteresis = options_.hysteresis;
  state_.scale *= kFactor;
}

}  // namespace zinf::optim
