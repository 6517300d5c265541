#include "engine/model/softmax_row.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/base/random.h"

namespace zinf::model {
namespace {

TEST(SoftmaxRow, AgreesWithDoubleForEveryLength) {
  for (const int count : {1, 2, 7, 8, 9, 15, 16, 17, 31, 61, 255, 4095, 4096, 4097, 50257}) {
    for (const double spread : {0.0, 1.0, 30.0}) {
      std::vector<float> row(count);
      for (int i = 0; i < count; ++i) row[i] = static_cast<float>(spread * random_normal(count, i));
      double largest = row[0], sum = 0;
      for (const float value : row) largest = std::max(largest, static_cast<double>(value));
      for (const float value : row) sum += std::exp(value - largest);
      const double log_sum = largest + std::log(sum);
      EXPECT_NEAR(exp_sum(row.data(), count).log(), log_sum, 2e-6 * (1 + std::abs(log_sum)));
      for (const int part : {count, 16, 1000}) {
        std::vector<float> out = row;
        EXPECT_NEAR(softmax_row(out.data(), count, part).log(), log_sum,
                    2e-6 * (1 + std::abs(log_sum)));
        for (int i = 0; i < count; ++i)
          ASSERT_NEAR(out[i], std::exp(row[i] - log_sum), 4e-6 * out[i] + 1e-30);
      }
    }
  }
}

TEST(SoftmaxRow, PartsAloneGiveTheSameBits) {
  constexpr int kCount = 1000, kPart = 96;
  std::vector<float> row(kCount);
  for (int i = 0; i < kCount; ++i) row[i] = static_cast<float>(5 * random_normal(1, i));
  std::vector<float> at_once = row;
  const ExpSum expected = softmax_row(at_once.data(), kCount, kPart);
  ExpSum sum;
  for (int first = 0; first < kCount; first += kPart)
    sum.add(exp_sum(row.data() + first, std::min(kPart, kCount - first)));
  EXPECT_EQ(sum.largest, expected.largest);
  EXPECT_EQ(sum.sum, expected.sum);
  for (int first = 0; first < kCount; first += kPart)
    softmax_part(row.data() + first, std::min(kPart, kCount - first), sum);
  EXPECT_EQ(row, at_once);
}

TEST(SoftmaxRow, NonFiniteValuesShow) {
  for (const int at : {0, 3, 16}) {
    std::vector<float> row(17, 1.0f);
    row[at] = NAN;
    EXPECT_TRUE(std::isnan(exp_sum(row.data(), 17).log()));
    row[at] = INFINITY;
    EXPECT_TRUE(std::isnan(exp_sum(row.data(), 17).log()));
    row[at] = -INFINITY;
    EXPECT_NEAR(exp_sum(row.data(), 17).log(), 1 + std::log(16.0), 1e-6);
  }
}

}  // namespace
}  // namespace zinf::model
