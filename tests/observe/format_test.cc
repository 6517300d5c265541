#include "engine/observe/format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace zinf::observe {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Format, Duration) {
  EXPECT_EQ(format_duration(0.812), "812 ms");
  EXPECT_EQ(format_duration(0.9999), "1s");
  EXPECT_EQ(format_duration(42.4), "42s");
  EXPECT_EQ(format_duration(59.6), "1m00s");
  EXPECT_EQ(format_duration(400), "6m40s");
  EXPECT_EQ(format_duration(3599.7), "1h00m");
  EXPECT_EQ(format_duration(3900), "1h05m");
  EXPECT_EQ(format_duration(86400 * 3 + 3600 * 4), "3d04h");
  EXPECT_EQ(format_duration(-1), "?");
  EXPECT_EQ(format_duration(kInf), "?");
  EXPECT_EQ(format_duration(1e300), "over 300 years");
}

TEST(Format, StepTime) {
  EXPECT_EQ(format_step_time(0.00042), "0.42 ms");
  EXPECT_EQ(format_step_time(0.0124), "12.4 ms");
  EXPECT_EQ(format_step_time(0.812), "812 ms");
  EXPECT_EQ(format_step_time(0.9994), "999 ms");
  EXPECT_EQ(format_step_time(0.9996), "1.00 s");
  EXPECT_EQ(format_step_time(12.34), "12.3 s");
  EXPECT_EQ(format_step_time(123.4), "123 s");
  EXPECT_EQ(format_step_time(NAN), "?");
}

TEST(Format, Count) {
  EXPECT_EQ(format_count(0), "0.0");
  EXPECT_EQ(format_count(9.94), "9.9");
  EXPECT_EQ(format_count(9.96), "10");
  EXPECT_EQ(format_count(999.4), "999");
  EXPECT_EQ(format_count(999.6), "1.0k");
  EXPECT_EQ(format_count(1234), "1.2k");
  EXPECT_EQ(format_count(99960), "100k");
  EXPECT_EQ(format_count(999600), "1.0M");
  EXPECT_EQ(format_count(34.5e6), "34.5M");
  EXPECT_EQ(format_count(2e18), "2000P");
  EXPECT_EQ(format_count(kInf), "?");
}

TEST(Format, LearningRate) {
  EXPECT_EQ(format_learning_rate(2e-5), "2.0e-5");
  EXPECT_EQ(format_learning_rate(1.2e-10), "1.2e-10");
  EXPECT_EQ(format_learning_rate(1), "1.0e+0");
  EXPECT_EQ(format_learning_rate(0), "0");
}

TEST(Format, Percent) {
  EXPECT_EQ(format_percent(0.931), "93 %");
  EXPECT_EQ(format_percent(1.2), "120 %");
  EXPECT_EQ(format_percent(NAN), "-");
}

}  // namespace
}  // namespace zinf::observe
