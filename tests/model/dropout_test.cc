#include "engine/model/dropout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace zinf::model {
namespace {

constexpr std::int64_t kMany = 1 << 20;

std::vector<float> factors_of(std::uint64_t key, double rate, std::int64_t count = kMany) {
  std::vector<float> factors(static_cast<std::size_t>(count));
  DropoutMask(key, rate).factors(0, count, factors.data());
  return factors;
}

TEST(Dropout, DropsAShareAndKeepsTheMean) {
  for (const double rate : {0.01, 0.1, 0.5, 0.9}) {
    const std::vector<float> factors = factors_of(random_key(1, 2), rate);
    double dropped = 0, sum = 0;
    for (const float factor : factors) {
      EXPECT_TRUE(factor == 0 || factor == static_cast<float>(1 / (1 - rate))) << factor;
      dropped += factor == 0;
      sum += factor;
    }
    const double n = static_cast<double>(kMany);
    EXPECT_NEAR(dropped / n, rate, 5 * std::sqrt(rate * (1 - rate) / n));
    EXPECT_NEAR(sum / n, 1, 5 * std::sqrt(rate / (1 - rate) / n));
  }
}

TEST(Dropout, NeighboursAreIndependent) {
  const std::vector<float> factors = factors_of(random_key(3), 0.5);
  for (const std::size_t lag : {1u, 2u, 3u, 64u, 768u, 4096u}) {
    double same = 0;
    for (std::size_t i = lag; i < factors.size(); ++i) same += factors[i] == factors[i - lag];
    const double n = static_cast<double>(factors.size() - lag);
    EXPECT_NEAR(same / n, 0.5, 5 * 0.5 / std::sqrt(n)) << "lag " << lag;
  }
}

TEST(Dropout, AnyRangeHasTheSameFactors) {
  const DropoutMask mask(random_key(5), 0.3);
  const std::vector<float> whole = factors_of(random_key(5), 0.3, 64);
  for (std::uint64_t first = 0; first < 8; ++first) {
    for (std::int64_t count = 0; count < 40; ++count) {
      std::vector<float> part(static_cast<std::size_t>(count) + 1, -1);
      mask.factors(first, count, part.data());
      for (std::int64_t i = 0; i < count; ++i) {
        EXPECT_EQ(part[i], whole[first + static_cast<std::uint64_t>(i)]);
        EXPECT_EQ(part[i], mask.factor(first + static_cast<std::uint64_t>(i)));
      }
      EXPECT_EQ(part.back(), -1);
    }
  }
}

TEST(Dropout, StepsMicroBatchesStagesAndSeedsDropOthers) {
  std::set<std::vector<float>> masks;
  for (const std::uint64_t seed : {0ull, 1ull}) {
    for (const std::uint64_t step : {0ull, 1ull}) {
      const std::uint64_t key = dropout_step_key(seed, step);
      EXPECT_NE(key, kNoDropout);
      for (const std::uint64_t micro_batch : {0ull, 1ull}) {
        for (const std::uint64_t stage : {0ull, 1ull})
          masks.insert(factors_of(random_key(random_key(key, micro_batch), stage), 0.5, 256));
      }
    }
  }
  EXPECT_EQ(masks.size(), 16u);
}

// Pinned: another value here is another run for everyone who resumes.
TEST(Dropout, GoldenValues) {
  const DropoutMask mask(dropout_step_key(42, 1), 0.25);
  std::string kept;
  for (std::uint64_t i = 0; i < 32; ++i) kept += mask.factor(i) == 0 ? '.' : '1';
  EXPECT_EQ(kept, "111111..11.111111..1111.1....11.");
}

}  // namespace
}  // namespace zinf::model
