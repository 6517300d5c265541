// The golden values were computed a second time by an independent implementation. A change here
// changes every run.
#include "engine/base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace zinf {
namespace {

TEST(Random, Mix64Golden) {
  // SplitMix64's published first output for seed 0.
  EXPECT_EQ(mix64(0), 0xe220a8397b1dcdafull);
  EXPECT_EQ(mix64(1), 0x910a2dec89025cc1ull);
  EXPECT_EQ(mix64(~0ull), 0xe4d971771b652c20ull);
}

TEST(Random, KeyGoldenAndOrderMatters) {
  EXPECT_EQ(random_key(42), 0xbdd732262feb6e95ull);
  EXPECT_EQ(random_key(42, 1, 2, 3), 0x3fb96077da5807fdull);
  EXPECT_EQ(random_key(42, 1, 3, 2), 0x85567bf27ce6f650ull);
}

TEST(Random, StreamGolden) {
  constexpr std::uint64_t kKey = random_key(42, 1, 2, 3);
  constexpr std::uint64_t kBits[] = {0x6476999aa59ce294ull, 0x196a04bcbc83a203ull,
                                     0xf4ac4ba3ae19c199ull, 0xe5d479016825b34aull};
  constexpr double kUniform[] = {0x1.91da666a96738p-2, 0x1.96a04bcbc83ap-4, 0x1.e95897475c338p-1,
                                 0x1.cba8f202d04b6p-1};
  constexpr std::uint64_t kBelow1000[] = {392, 99, 955, 897};
  for (std::uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(random_bits(kKey, i), kBits[i]);
    EXPECT_EQ(random_uniform(kKey, i), kUniform[i]);
    EXPECT_EQ(random_below(kKey, i, 1000), kBelow1000[i]);
  }
}

TEST(Random, NormalGolden) {
  constexpr std::uint64_t kKey = random_key(42, 1, 2, 3);
  constexpr double kNormal[] = {0x1.9ee056b047529p-1, 0x1.ffe1dfc896cdep+0, 0x1.12746effc8447p-1,
                                0x1.0b473fa2e8922p+0};
  // log1p and cos may differ in the last bit between libraries; initial weights are rounded to
  // float.
  for (std::uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(static_cast<float>(random_normal(kKey, i)), static_cast<float>(kNormal[i]));
  }
}

TEST(Random, UniformStaysBelowOneAndBelowStaysBelow) {
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    const double u = random_uniform(7, i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    ASSERT_LT(random_below(7, i, 3), 3u);
    ASSERT_EQ(random_below(7, i, 1), 0u);
  }
}

// Deterministic, so the bounds can be tight: 1/sqrt(n) is 0.0032.
TEST(Random, Moments) {
  double sum = 0, squares = 0, uniform = 0;
  int counts[3] = {};
  constexpr int kCount = 100'000;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const double n = random_normal(99, i);
    ASSERT_TRUE(std::isfinite(n));
    sum += n;
    squares += n * n;
    uniform += random_uniform(98, i);
    ++counts[random_below(97, i, 3)];
  }
  EXPECT_NEAR(sum / kCount, 0, 0.01);
  EXPECT_NEAR(squares / kCount, 1, 0.015);
  EXPECT_NEAR(uniform / kCount, 0.5, 0.005);
  for (const int count : counts) EXPECT_NEAR(count / double{kCount}, 1.0 / 3, 0.01);
}

TEST(Random, NeighbouringStreamsShareNothing) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t stream = 0; stream < 100; ++stream) {
    for (std::uint64_t i = 0; i < 100; ++i) seen.insert(random_bits(random_key(1, stream), i));
  }
  EXPECT_EQ(seen.size(), 10'000u);
}

}  // namespace
}  // namespace zinf
