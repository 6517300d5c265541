#include "engine/model/bf16_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/base/random.h"
#include "engine/model/float_convert.h"
#include "engine/model/torch_runtime.h"

namespace zinf::model {
namespace {

using Bits = std::vector<std::uint16_t>;

float wide(std::uint16_t bf16) {
  const std::uint32_t bits = std::uint32_t{bf16} << 16;
  float value = 0;
  std::memcpy(&value, &bits, 4);
  return value;
}

Bits drawn(std::int64_t count, std::uint64_t key, double spread) {
  Bits bits;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(spread * random_normal(key, i));
    std::uint32_t word = 0;
    std::memcpy(&word, &value, 4);
    bits.push_back(static_cast<std::uint16_t>(word >> 16));
  }
  return bits;
}

TEST(Bf16Kernels, AccumulateIsExactForEveryLength) {
  for (const std::int64_t count : {1, 7, 15, 16, 17, 31, 33, 1000, 40000}) {
    const Bits from = drawn(count, 1, 3);
    std::vector<float> before;
    for (std::int64_t i = 0; i < count; ++i)
      before.push_back(static_cast<float>(random_normal(2, i)));
    for (const bool keep : {true, false}) {
      for (const float scale : {1.0f, 0.3f}) {
        std::vector<float> to = before;
        accumulate(to.data(), from.data(), count, keep, scale);
        for (std::int64_t i = 0; i < count; ++i) {
          const float product = wide(from[i]) * scale;
          ASSERT_EQ(to[i], keep ? product + before[i] : product) << i;
        }
      }
    }
  }
}

TEST(Bf16Kernels, RoundsToNearestEvenForEveryLength) {
  std::vector<float> special = {
      0.0f,        -0.0f,     1e-45f, -3e-42f, 1.00390625f,
      1.01171875f, -INFINITY, NAN,    3.4e38f, std::numeric_limits<float>::max()};
  for (const std::int64_t count : {1, 7, 15, 16, 17, 31, 33, 1000, 40000}) {
    std::vector<float> from;
    for (std::int64_t i = 0; i < count; ++i) {
      from.push_back(i % 3 == 0 ? special[static_cast<std::size_t>(i / 3) % special.size()]
                                : static_cast<float>(random_normal(6, i)));
    }
    Bits to(from.size());
    round_to_bf16(from.data(), to.data(), count);
    for (std::int64_t i = 0; i < count; ++i)
      ASSERT_EQ(to[i], to_bf16_even(from[i])) << from[i] << " at " << i << " of " << count;
  }
}

TEST(Bf16Kernels, RowsAreWidenedExactlyAndRoundedBack) {
  for (const std::int64_t count : {1, 15, 16, 33, 1000}) {
    const Bits from = drawn(count, 8, 3);
    std::vector<float> values(from.size());
    widen_row(from.data(), values.data(), count);
    for (std::size_t i = 0; i < from.size(); ++i) ASSERT_EQ(values[i], wide(from[i])) << i;
    Bits back(from.size());
    round_row(values.data(), back.data(), count);
    EXPECT_EQ(back, from);
  }
}

TEST(Bf16Kernels, ColumnsAreSummedInOrder) {
  for (const std::int64_t columns : {1, 15, 16, 17, 64, 100, 300, 1000}) {
    const std::int64_t rows = 37, stride = columns + 5;
    const Bits from = drawn(rows * stride, 9, 1);
    for (const bool keep : {true, false}) {
      std::vector<float> to(static_cast<std::size_t>(columns), 0.5f);
      accumulate_columns(to.data(), from.data(), stride, rows, columns, keep);
      for (std::int64_t i = 0; i < columns; ++i) {
        float sum = 0;
        for (std::int64_t row = 0; row < rows; ++row)
          sum += wide(from[static_cast<std::size_t>(row * stride + i)]);
        ASSERT_EQ(to[static_cast<std::size_t>(i)], keep ? 0.5f + sum : sum)
            << i << " of " << columns;
      }
    }
  }
}

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

double gelu_slope(double x) {
  const double k = std::sqrt(2 / M_PI), t = std::tanh(k * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x);
}

// Half a unit in the last place of bf16, and what fp32 arithmetic adds.
double tolerance(double value) { return std::ldexp(std::abs(value), -8) * 1.01 + 1e-6; }

TEST(Bf16Kernels, GeluIsTheFormulaRounded) {
  for (const std::int64_t count : {1, 15, 16, 17, 40000}) {
    for (const double spread : {0.01, 1.0, 8.0}) {
      const Bits x = drawn(count, 3, spread), gradient = drawn(count, 4, 1);
      Bits y(x.size()), to_x(x.size());
      gelu_tanh(x.data(), y.data(), count);
      gelu_tanh_backward(gradient.data(), x.data(), to_x.data(), count);
      for (std::int64_t i = 0; i < count; ++i) {
        const double expected = gelu(wide(x[i]));
        const double slope = wide(gradient[i]) * gelu_slope(wide(x[i]));
        ASSERT_NEAR(wide(y[i]), expected, tolerance(expected)) << wide(x[i]);
        ASSERT_NEAR(wide(to_x[i]), slope, tolerance(slope)) << wide(x[i]);
      }
    }
  }
}

TEST(Bf16Kernels, NonFiniteValuesShow) {
  const Bits x = {0x7FC0, 0x7F80, 0};  // NaN, infinity, zero
  Bits y(3);
  gelu_tanh(x.data(), y.data(), 3);
  EXPECT_TRUE(std::isnan(wide(y[0])));
  EXPECT_EQ(wide(y[1]), INFINITY);
  EXPECT_EQ(y[2], 0);
}

TEST(Bf16Kernels, BitsDoNotDependOnThreads) {
  const Bits x = drawn(100001, 5, 2);
  std::vector<float> sums[2];
  for (const int threads : {1, 3}) {
    set_compute_threads(threads);
    sums[threads / 3].assign(1000, 0);
    accumulate_columns(sums[threads / 3].data(), x.data(), 1000, 100, 1000, false);
  }
  EXPECT_EQ(sums[0], sums[1]);
  Bits one(x.size()), three(x.size());
  set_compute_threads(1);
  gelu_tanh(x.data(), one.data(), static_cast<std::int64_t>(x.size()));
  set_compute_threads(3);
  gelu_tanh(x.data(), three.data(), static_cast<std::int64_t>(x.size()));
  EXPECT_EQ(one, three);
}

}  // namespace
}  // namespace zinf::model
