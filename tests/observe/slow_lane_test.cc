#include "engine/observe/slow_lane.h"

#include <gtest/gtest.h>

#include <cmath>

namespace zinf::observe {
namespace {

StepRecord step_of(std::uint64_t step, double seconds) {
  StepRecord record;
  record.step = step;
  record.seconds = seconds;
  return record;
}

LaneRate rate_of(double seen, const std::string& name = "nvme_read") {
  return {name, "GB/s", 2.0, seen, 0.5};
}

// Feeds steps of one rate; returns all texts.
std::vector<std::string> feed(SlowLaneDetector& detector, std::uint64_t first, std::uint64_t last,
                              double seen) {
  std::vector<std::string> all;
  for (auto step = first; step <= last; ++step) {
    const LaneRate rates[] = {rate_of(seen)};
    for (auto& text : detector.observe(step_of(step, 1), rates)) all.push_back(text);
  }
  return all;
}

TEST(SlowLane, NamesTheLaneWhoseStallsGrew) {
  SlowLaneDetector detector;
  for (std::uint64_t step = 1; step <= 5; ++step) {
    StepRecord record = step_of(step, 1.0);
    record.stall_seconds[Lane::kNvmeRead] = 0.3;  // always the largest, but not what grew
    EXPECT_TRUE(detector.observe(record, {}).empty());
  }
  StepRecord slow = step_of(6, 1.5);
  slow.stall_seconds[Lane::kNvmeRead] = 0.4;
  slow.stall_seconds[Lane::kNvmeWrite] = 0.35;
  EXPECT_EQ(detector.observe(slow, {}),
            std::vector<std::string>{
                "step 6 took 1.50 s, 1.5 times the running median of 1.00 s; slow lane: "
                "nvme_write (waited for 350 ms more than usual)"});
}

TEST(SlowLane, FallsBackToTheBusierLaneThenToTheBottleneck) {
  SlowLaneDetector detector;
  for (std::uint64_t step = 1; step <= 3; ++step) detector.observe(step_of(step, 1), {});
  StepRecord slow = step_of(4, 2);
  slow.lane_busy[Lane::kOptimizer] = 0.5;
  const auto busy = detector.observe(slow, {});
  ASSERT_EQ(busy.size(), 1u);
  EXPECT_NE(busy[0].find("slow lane: optimizer (busy 1.00 s more than usual)"), std::string::npos)
      << busy[0];

  SlowLaneDetector other;
  for (std::uint64_t step = 1; step <= 3; ++step) other.observe(step_of(step, 1), {});
  slow = step_of(4, 2);
  slow.bottleneck = "compute";
  const auto named = other.observe(slow, {});
  ASSERT_EQ(named.size(), 1u);
  EXPECT_NE(named[0].find("bottleneck lane: compute"), std::string::npos) << named[0];
}

TEST(SlowLane, AnInsignificantStallIsNotTheCause) {
  SlowLaneDetector detector;
  for (std::uint64_t step = 1; step <= 3; ++step) detector.observe(step_of(step, 1), {});
  StepRecord slow = step_of(4, 2);
  slow.lane_busy[Lane::kOptimizer] = 0.5;
  slow.stall_seconds[Lane::kCompute] = 1e-6;
  const auto texts = detector.observe(slow, {});
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_NE(texts[0].find("slow lane: optimizer (busy 1.00 s"), std::string::npos) << texts[0];
}

TEST(SlowLane, TheLimitIs130PercentAndTheThirdStepTheFirstJudged) {
  SlowLaneDetector detector;
  EXPECT_TRUE(detector.observe(step_of(1, 1), {}).empty());
  EXPECT_TRUE(detector.observe(step_of(2, 1), {}).empty());
  EXPECT_TRUE(detector.observe(step_of(3, 1.3), {}).empty());  // "exceeds"
  EXPECT_EQ(detector.observe(step_of(4, 1.31), {}).size(), 1u);

  SlowLaneDetector second_step_slow;
  second_step_slow.observe(step_of(1, 1), {});
  EXPECT_TRUE(second_step_slow.observe(step_of(2, 10), {}).empty());
}

TEST(SlowLane, OneWarningPerEpisode) {
  SlowLaneDetector detector;
  std::uint64_t step = 1;
  const auto run = [&](int count, double seconds) {
    std::size_t texts = 0;
    for (int i = 0; i < count; ++i) texts += detector.observe(step_of(step++, seconds), {}).size();
    return texts;
  };
  EXPECT_EQ(run(50, 1), 0u);
  EXPECT_EQ(run(3, 2), 1u);  // one for three slow steps
  EXPECT_EQ(run(9, 1), 0u);
  EXPECT_EQ(run(1, 2), 0u);   // still the same episode
  EXPECT_EQ(run(10, 1), 0u);  // ten calm steps end it
  EXPECT_EQ(run(1, 2), 1u);
}

TEST(SlowLane, TheMedianRunsAlong) {
  SlowLaneDetector detector;
  std::size_t texts = 0;
  for (std::uint64_t step = 1; step <= 300; ++step) {
    texts += detector.observe(step_of(step, step <= 150 ? 1.0 : 2.0), {}).size();
  }
  EXPECT_EQ(texts, 1u);  // the change itself, then two seconds are the new normal
}

TEST(SlowLane, ARedoStepIsNotJudgedAndNotRemembered) {
  SlowLaneDetector detector;
  for (std::uint64_t step = 1; step <= 3; ++step) detector.observe(step_of(step, 1), {});
  for (std::uint64_t step = 4; step <= 20; ++step) {
    StepRecord redo = step_of(step, 2);
    redo.redo = true;
    EXPECT_TRUE(detector.observe(redo, {}).empty());
  }
  EXPECT_EQ(detector.observe(step_of(21, 2), {}).size(), 1u);
}

TEST(SlowLane, LowRateForThreeStepsFromStepThreeOnIsSaidOnce) {
  SlowLaneDetector detector;
  EXPECT_TRUE(feed(detector, 1, 4, 1.0).empty());  // steps 3 and 4 are low: two in a row
  EXPECT_EQ(feed(detector, 5, 5, 1.0),
            std::vector<std::string>{"nvme_read runs at 1.00 GB/s, 50 % of the 2.00 GB/s in the "
                                     "hardware profile, for 3 steps; likely "
                                     "causes: thermal throttling, a full write cache, other "
                                     "processes, a stale profile (measure again: "
                                     "zinf tune)"});
  EXPECT_TRUE(feed(detector, 6, 50, 1.0).empty());
}

TEST(SlowLane, ARateThatRecoversStartsTheCountAgain) {
  SlowLaneDetector detector;
  EXPECT_TRUE(feed(detector, 1, 4, 1.0).empty());
  EXPECT_TRUE(feed(detector, 5, 5, 1.7).empty());  // exactly 85 % is not below
  EXPECT_TRUE(feed(detector, 6, 7, 1.0).empty());
  EXPECT_EQ(feed(detector, 8, 8, 1.0).size(), 1u);
}

TEST(SlowLane, HighRateIsSaidOnceAndNamesTheProfile) {
  SlowLaneDetector detector;
  EXPECT_TRUE(feed(detector, 1, 2, 3.0).empty());
  EXPECT_EQ(feed(detector, 3, 20, 3.0),
            std::vector<std::string>{
                "nvme_read runs at 3.00 GB/s, 150 % of the 2.00 GB/s in the hardware profile: the "
                "profile is stale and the plan may not be the best (measure again: zinf tune)"});
}

TEST(SlowLane, DrivesAreJudgedOneByOne) {
  SlowLaneDetector detector;
  std::vector<std::string> all;
  for (std::uint64_t step = 1; step <= 10; ++step) {
    const LaneRate rates[] = {rate_of(2.0, "nvme_read of /a"), rate_of(1.0, "nvme_read of /b")};
    for (auto& text : detector.observe(step_of(step, 1), rates)) all.push_back(text);
  }
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].rfind("nvme_read of /b runs at", 0), 0u);
  EXPECT_DOUBLE_EQ(detector.profile_ratio("nvme_read of /a"), 1.0);
  EXPECT_DOUBLE_EQ(detector.profile_ratio("nvme_read of /b"), 0.5);
  EXPECT_TRUE(std::isnan(detector.profile_ratio("nvme_write")));
}

TEST(SlowLane, RatesThatSayNothingAreIgnored) {
  SlowLaneDetector detector;
  for (std::uint64_t step = 1; step <= 10; ++step) {
    const LaneRate rates[] = {{"a", "GB/s", 0, 1, 1},             // no profile
                              {"b", "GB/s", 1, 0.1, 0.0001},      // hardly busy
                              {"c", "GB/s", 1, std::nan(""), 1},  // not measured
                              {"d", "GB/s", 1, INFINITY, 1}};
    EXPECT_TRUE(detector.observe(step_of(step, 1), rates).empty());
  }
}

}  // namespace
}  // namespace zinf::observe
