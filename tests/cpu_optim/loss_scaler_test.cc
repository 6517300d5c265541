#include "cpu_optim/loss_scaler.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/base/error.h"

namespace zinf::optim {
namespace {

// The scale before each of the steps; true is a good step.
std::vector<double> scales(LossScaler scaler, const std::vector<bool>& steps) {
  std::vector<double> seen;
  for (const bool good : steps) {
    seen.push_back(scaler.scale());
    EXPECT_EQ(good ? StepVerdict::kApply : StepVerdict::kSkip, scaler.update(good));
  }
  seen.push_back(scaler.scale());
  return seen;
}

TEST(LossScaler, DefaultsAreDeepSpeeds) {
  const LossScaleOptions options;
  EXPECT_EQ(0.0, options.loss_scale);
  EXPECT_EQ(16, options.initial_scale_power);
  EXPECT_EQ(1000, options.loss_scale_window);
  EXPECT_EQ(2, options.hysteresis);
  EXPECT_FALSE(options.consecutive_hysteresis);
  EXPECT_EQ(1.0, options.min_loss_scale);
  EXPECT_EQ(65536.0, LossScaler(options).scale());
}

TEST(LossScaler, HysteresisTakesTheFirstOverflow) {
  EXPECT_EQ((std::vector<double>{65536, 65536, 32768, 16384}),
            scales(LossScaler({}), {false, false, false}));
}

TEST(LossScaler, GrowsAfterWindowPlusOneGoodStepsThenEveryWindow) {
  LossScaleOptions options;
  options.initial_scale_power = 10;
  options.loss_scale_window = 2;
  EXPECT_EQ((std::vector<double>{1024, 1024, 1024, 2048, 2048, 4096, 4096, 8192}),
            scales(LossScaler(options), {true, true, true, true, true, true, true}));
  options.hysteresis = 1;
  EXPECT_EQ((std::vector<double>{1024, 512, 512, 512, 1024, 1024, 2048}),
            scales(LossScaler(options), {false, true, true, true, true, true}));
}

TEST(LossScaler, HysteresisIsFullAgainAfterGrowth) {
  LossScaleOptions options;
  options.loss_scale_window = 1;
  // One overflow uses it up; the window's growth refills it.
  EXPECT_EQ((std::vector<double>{65536, 65536, 65536, 131072, 131072, 65536}),
            scales(LossScaler(options), {false, true, true, false, false}));
  options.loss_scale_window = 1000;
  EXPECT_EQ((std::vector<double>{65536, 65536, 65536, 32768}),
            scales(LossScaler(options), {false, true, false}));
  options.consecutive_hysteresis = true;
  EXPECT_EQ((std::vector<double>{65536, 65536, 65536, 65536}),
            scales(LossScaler(options), {false, true, false}));
}

TEST(LossScaler, StopsAtTheMinimum) {
  LossScaleOptions options;
  options.initial_scale_power = 2;
  options.max_skips_at_minimum = 3;
  LossScaler scaler(options);
  for (const double expected : {4.0, 4.0, 2.0}) {
    EXPECT_EQ(expected, scaler.scale());
    EXPECT_EQ(StepVerdict::kSkip, scaler.update(false));
  }
  EXPECT_EQ(1.0, scaler.scale());
  EXPECT_EQ(StepVerdict::kSkip, scaler.update(false));
  EXPECT_EQ(StepVerdict::kSkip, scaler.update(false));
  EXPECT_EQ(StepVerdict::kApply, LossScaler(scaler).update(true));
  EXPECT_EQ(StepVerdict::kStop, scaler.update(false));
  EXPECT_EQ(1.0, scaler.scale());
  EXPECT_EQ(6, scaler.state().skipped);
  // DeepSpeed's rule, the default: the first overflow at the minimum ends the run.
  options.max_skips_at_minimum = 1;
  LossScaler strict(options);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(StepVerdict::kSkip, strict.update(false));
  EXPECT_EQ(StepVerdict::kStop, strict.update(false));
}

TEST(LossScaler, FixedScaleStaysFixed) {
  LossScaleOptions options;
  options.loss_scale = 128.0;
  const std::vector<double> expected(6, 128.0);
  EXPECT_EQ(expected, scales(LossScaler(options), {true, false, false, false, true}));
}

// A run that starts at the final scale goes on as one that found it by skipping.
TEST(LossScaler, ResumesFromItsState) {
  LossScaleOptions options;
  options.initial_scale_power = 24;
  options.loss_scale_window = 3;
  LossScaler scaler(options);
  for (const bool good : {false, false, true, false, true, true}) scaler.update(good);
  LossScaler resumed(options, scaler.state());
  for (const bool good : {true, true, true, false, true, false, false}) {
    EXPECT_EQ(scaler.update(good), resumed.update(good));
    EXPECT_EQ(scaler.scale(), resumed.scale());
  }
}

TEST(LossScaler, RefusesBadKeys) {
  LossScaleOptions options;
  options.hysteresis = 0;
  try {
    LossScaler scaler(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(ErrorKind::kUsage, error.kind());
    EXPECT_STREQ("fp16.hysteresis: expected 1 or more, found 0", error.what());
  }
}

}  // namespace
}  // namespace zinf::optim
