#include "cpu_optim/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "cpu_optim/state_schema.h"
#include "engine/base/random.h"

namespace zinf::optim {
namespace {

std::vector<float> gradient_of(std::int64_t elements) {
  std::vector<float> gradient(static_cast<std::size_t>(elements));
  for (std::size_t i = 0; i < gradient.size(); ++i)
    gradient[i] = static_cast<float>(random_normal(11, i));
  return gradient;
}

// The definition, written out.
double tile_by_hand(const float* x, std::int64_t n) {
  double lane[16] = {};
  for (std::int64_t i = 0; i < n; ++i)
    lane[i % 16] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  for (int apart : {8, 4, 2, 1}) {
    for (int j = 0; j < apart; ++j) lane[j] += lane[j + apart];
  }
  return lane[0];
}

TEST(Norm, BitsDoNotDependOnSetOrThreads) {
  for (const std::int64_t elements : {1, 15, 16, 17, 31, 4095, 4096, 4097, 100000}) {
    const std::vector<float> gradient = gradient_of(elements);
    for (const Isa isa : available_isas()) {
      for (const int threads : {1, 2, 3}) {
        Pool pool(threads);
        std::vector<double> sums(static_cast<std::size_t>(tile_count(elements)));
        ASSERT_TRUE(tile_sums(pool, gradient.data(), elements, sums.data(), isa));
        for (std::size_t t = 0; t < sums.size(); ++t) {
          const auto begin = static_cast<std::int64_t>(t) * kTile;
          ASSERT_EQ(tile_by_hand(gradient.data() + begin, std::min(kTile, elements - begin)),
                    sums[t])
              << name(isa) << " tile " << t << " of " << elements;
        }
      }
    }
  }
}

TEST(Norm, AddsTilesInOrder) {
  const std::vector<double> sums = {1e16, 1.0, 1.0};  // in another order the ones would survive
  EXPECT_EQ(std::sqrt(1e16), norm_from_sums(sums));
  EXPECT_EQ(0.0, norm_from_sums({}));
}

TEST(Norm, FindsEveryNonFiniteElement) {
  Pool pool(2);
  std::vector<float> gradient(9000, std::numeric_limits<float>::max());
  std::vector<double> sums(3);
  for (const Isa isa : available_isas()) {
    EXPECT_TRUE(tile_sums(pool, gradient.data(), 9000, sums.data(), isa))
        << "the largest number is finite";
    for (const float bad : {INFINITY, -INFINITY, NAN}) {
      for (const std::size_t at : {0u, 17u, 4096u, 8999u}) {
        gradient[at] = bad;
        EXPECT_FALSE(tile_sums(pool, gradient.data(), 9000, sums.data(), isa))
            << bad << " at " << at;
        gradient[at] = 1.0f;
      }
    }
  }
}

// torch.nn.utils.clip_grad_norm_'s factor.
TEST(Norm, ClipFactor) {
  EXPECT_EQ(1.0, clip_factor(0.5, 1.0));
  EXPECT_EQ(1.0, clip_factor(0.0, 1.0));
  EXPECT_EQ(1.0 / (1.0 + 1e-6), clip_factor(1.0, 1.0));
  EXPECT_EQ(1.0 / (4.0 + 1e-6), clip_factor(4.0, 1.0));
  EXPECT_EQ(0.0, clip_factor(4.0, 0.0));
}

}  // namespace
}  // namespace zinf::optim
