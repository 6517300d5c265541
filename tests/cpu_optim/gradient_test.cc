// A bf16 gradient counts as the same numbers in fp32: in the norm and in every format's update.
#include "cpu_optim/gradient.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cpu_optim/norm.h"
#include "tests/cpu_optim/piece.h"

namespace zinf::optim {
namespace {

struct Rounded {
  std::vector<std::uint16_t> bf16;
  std::vector<float> fp32;  // the same numbers
};

Rounded rounded(const std::vector<float>& gradient) {
  Rounded result{std::vector<std::uint16_t>(gradient.size()), std::vector<float>(gradient.size())};
  const auto elements = static_cast<std::int64_t>(gradient.size());
  fp32_to_bf16(gradient.data(), result.bf16.data(), elements, Isa::kScalar);
  bf16_to_fp32(result.bf16.data(), result.fp32.data(), elements, Isa::kScalar);
  return result;
}

TEST(Bf16Gradient, UpdatesAsTheSameNumbersInFp32) {
  constexpr std::int64_t kElements = 10240;
  const std::vector<Group> groups = {{1.0, 0.01}, {0.5, 0.0}};
  const std::vector<GroupRange> ranges = {{0, 700, 0}, {768, 4000, 1}, {4864, 5376, 0}};
  for (const Format& format : all_formats()) {
    const bool whole_quanta = format.moments == StateDtype::kInt8;
    const std::vector<float> exact =
        whole_quanta ? normal_gradient(kElements, 3) : adversarial_gradient(kElements, 3);
    const Rounded gradient = rounded(exact);
    ASSERT_NE(gradient.fp32, exact);
    const std::int64_t first = whole_quanta ? 512 : 253, size = whole_quanta ? 9472 : 9000;
    for (const Isa isa : available_isas()) {
      const Optimizer optimizer(format, hyper_of(format), isa);
      for (const int threads : {1, 3}) {
        Pool pool(threads);
        Piece expected(format, kElements);
        expected.fill(4);
        Piece piece = expected;
        optimizer.update(pool, expected.view(first), gradient.fp32.data() + first, first, size,
                         ranges, groups, scalars_of(1));
        optimizer.update(pool, piece.view(first), gradient.bf16.data() + first, first, size, ranges,
                         groups, scalars_of(1));
        ASSERT_EQ(expected.bytes(), piece.bytes()) << describe(format, isa);
      }
    }
  }
}

TEST(Bf16Gradient, HasTheNormOfTheSameNumbersInFp32) {
  for (const std::int64_t elements : {1, 17, 4095, 4097, 100000}) {
    const Rounded gradient = rounded(normal_gradient(elements, 5));
    for (const Isa isa : available_isas()) {
      Pool pool(3);
      std::vector<double> expected(static_cast<std::size_t>(tile_count(elements)));
      std::vector<double> found = expected;
      ASSERT_TRUE(tile_sums(pool, gradient.fp32.data(), elements, expected.data(), isa));
      ASSERT_TRUE(tile_sums(pool, gradient.bf16.data(), elements, found.data(), isa));
      ASSERT_EQ(expected, found) << name(isa) << ", " << elements;
    }
  }
}

// The largest fp32 numbers round to infinity: what the update would use is not finite.
TEST(Bf16Gradient, IsNotFiniteWhereRoundingOverflows) {
  Pool pool(1);
  std::vector<double> sums(1);
  std::vector<float> gradient(100, 1.0f);
  EXPECT_TRUE(tile_sums(pool, rounded(gradient).bf16.data(), 100, sums.data()));
  for (const float bad : {std::numeric_limits<float>::max(), INFINITY, NAN}) {
    gradient[70] = bad;
    EXPECT_FALSE(tile_sums(pool, rounded(gradient).bf16.data(), 100, sums.data())) << bad;
  }
}

}  // namespace
}  // namespace zinf::optim
