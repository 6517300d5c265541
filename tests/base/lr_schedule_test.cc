#include "engine/base/lr_schedule.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/base/error.h"

namespace zinf {
namespace {

void expect_rates(const LrSchedule& schedule, const std::vector<double>& expected) {
  schedule.validate();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(expected[i], schedule.rate(static_cast<std::int64_t>(i) + 1), 6e-10)
        << name(schedule.type) << " update " << i + 1;
  }
}

LrSchedule make(ScheduleType type, double peak, std::int64_t warmup, std::int64_t total) {
  LrSchedule schedule;
  schedule.type = type;
  schedule.peak = peak;
  schedule.warmup_steps = warmup;
  schedule.total_steps = total;
  return schedule;
}

LrSchedule linear_warmup(LrSchedule schedule) {
  schedule.warmup_type = WarmupType::kLinear;
  return schedule;
}

// The pinned tables, from DeepSpeed's present schedules.
TEST(LrSchedule, WarmupDecay) {
  const LrSchedule schedule = make(ScheduleType::kWarmupDecay, 1.0, 2, 6);
  expect_rates(linear_warmup(schedule), {0, 0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0, 0});
  expect_rates(schedule, {0, 0, 1, 1, 0.75, 0.5, 0.25, 0, 0, 0});
  LrSchedule raised = make(ScheduleType::kWarmupDecay, 1.0, 4, 9);
  raised.min_lr = 0.1;
  expect_rates(raised, {0.1, 0.1, 0.55, 0.8132331253, 1, 1, 0.82, 0.64, 0.46, 0.28, 0.1});
}

TEST(LrSchedule, Warmup) {
  expect_rates(make(ScheduleType::kWarmup, 1.0, 5, 0),
               {0, 0, 0.4306765581, 0.6826061945, 0.8613531161, 1, 1, 1});
  LrSchedule raised = linear_warmup(make(ScheduleType::kWarmup, 1.0, 4, 0));
  raised.min_lr = 0.25;
  expect_rates(raised, {0.25, 0.25, 0.4375, 0.625, 0.8125, 1, 1});
}

TEST(LrSchedule, WarmupCosine) {
  expect_rates(
      make(ScheduleType::kWarmupCosine, 2.0, 3, 8),
      {0, 0, 1.261859507, 2, 1.809036093, 1.309086093, 0.6911139073, 0.1911639073, 0.0002, 0.0002});
  LrSchedule raised = linear_warmup(make(ScheduleType::kWarmupCosine, 2.0, 3, 8));
  raised.warmup_min_ratio = 0.1;
  raised.cos_min_ratio = 0.05;
  expect_rates(raised,
               {0, 0.2, 0.8, 1.4, 1.818566145, 1.343566145, 0.7564338553, 0.2814338553, 0.1, 0.1});
}

// transformers' linear, cosine and constant_with_warmup.
TEST(LrSchedule, PlainOnes) {
  expect_rates(make(ScheduleType::kLinear, 2.0, 2, 6), {0, 1, 2, 1.5, 1, 0.5, 0, 0});
  expect_rates(make(ScheduleType::kLinear, 2.0, 0, 4), {2, 1.5, 1, 0.5, 0, 0});
  expect_rates(
      make(ScheduleType::kCosine, 2.0, 3, 8),
      {0, 2.0 / 3, 4.0 / 3, 2, 1.809016994, 1.309016994, 0.6909830056, 0.1909830056, 0, 0, 0});
  expect_rates(make(ScheduleType::kConstant, 2.0, 3, 0), {0, 2.0 / 3, 4.0 / 3, 2, 2});
  expect_rates(make(ScheduleType::kConstant, 2.0, 0, 0), {2, 2, 2});
  LrSchedule floor = make(ScheduleType::kCosine, 2.0, 0, 2);
  floor.min_lr = 0.5;
  expect_rates(floor, {2, 1.25, 0.5, 0.5});
}

// Warm-ups of 0, 1 and 2 are legal and the same; nothing divides by zero, nothing is negative.
TEST(LrSchedule, EdgesAreFiniteAndNotNegative) {
  for (const ScheduleType type :
       {ScheduleType::kConstant, ScheduleType::kLinear, ScheduleType::kCosine,
        ScheduleType::kWarmup, ScheduleType::kWarmupDecay, ScheduleType::kWarmupCosine}) {
    for (std::int64_t total = 1; total <= 5; ++total) {
      for (std::int64_t warmup = 0; warmup <= total; ++warmup) {
        for (const LrSchedule& schedule :
             {make(type, 1.0, warmup, total), linear_warmup(make(type, 1.0, warmup, total))}) {
          schedule.validate();
          for (std::int64_t update = 1; update < 12; ++update) {
            const double rate = schedule.rate(update);
            EXPECT_TRUE(rate >= 0.0 && rate <= 1.0)
                << name(type) << ' ' << warmup << ' ' << total << ' ' << rate;
          }
        }
      }
    }
  }
  for (const std::int64_t warmup : {0, 1}) {
    for (std::int64_t update = 1; update < 9; ++update) {
      EXPECT_EQ(make(ScheduleType::kWarmupDecay, 1.0, 2, 6).rate(update),
                make(ScheduleType::kWarmupDecay, 1.0, warmup, 6).rate(update));
    }
  }
}

std::string message_of(const LrSchedule& schedule) {
  try {
    schedule.validate();
  } catch (const Error& error) {
    EXPECT_EQ(ErrorKind::kUsage, error.kind());
    return error.what();
  }
  return "";
}

TEST(LrSchedule, RefusesWhatCannotBeMeant) {
  EXPECT_EQ(
      "learning-rate schedule WarmupDecayLR: 8 warm-up steps of 4 steps in all; the peak rate "
      "would never be reached\n"
      "  hint: give fewer warm-up steps or a larger total; steps are optimizer updates, not "
      "micro-batches",
      message_of(make(ScheduleType::kWarmupDecay, 1.0, 8, 4)));
  EXPECT_EQ("learning-rate schedule linear: the total number of steps must be 1 or more, found 0",
            message_of(make(ScheduleType::kLinear, 1.0, 0, 0)));
  EXPECT_EQ("learning-rate schedule: the peak rate must be zero or above and finite, found -1",
            message_of(make(ScheduleType::kConstant, -1.0, 0, 0)));
  EXPECT_EQ("", message_of(make(ScheduleType::kWarmup, 1.0, 8, 4)));
}

TEST(LrSchedule, Names) {
  EXPECT_EQ(ScheduleType::kWarmupDecay, parse_schedule_type("WarmupDecayLR"));
  EXPECT_EQ(std::nullopt, parse_schedule_type("warmup"));
  EXPECT_EQ(WarmupType::kLog, parse_warmup_type("log"));
  EXPECT_EQ(std::nullopt, parse_warmup_type(""));
  EXPECT_EQ("WarmupCosineLR", name(ScheduleType::kWarmupCosine));
}

}  // namespace
}  // namespace zinf
