#include "engine/model/float_convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace zinf::model {
namespace {

float bits(std::uint32_t pattern) { return std::bit_cast<float>(pattern); }

TEST(FloatConvert, Bf16RoundsHalfwayEitherWay) {
  EXPECT_EQ(to_bf16_even(bits(0x3F808000)), 0x3F80);  // halfway, even below
  EXPECT_EQ(to_bf16_even(bits(0x3F818000)), 0x3F82);  // halfway, even above
  EXPECT_EQ(to_bf16_even(bits(0x3F808001)), 0x3F81);
  EXPECT_EQ(to_bf16_away(bits(0x3F808000)), 0x3F81);
  EXPECT_EQ(to_bf16_away(bits(0xBF808000)), 0xBF81);
  EXPECT_EQ(to_bf16_away(bits(0x3F807FFF)), 0x3F80);
}

TEST(FloatConvert, Bf16KeepsSpecialValues) {
  for (const auto convert : {to_bf16_even, to_bf16_away}) {
    EXPECT_EQ(convert(std::numeric_limits<float>::infinity()), 0x7F80);
    EXPECT_EQ(convert(-0.0f), 0x8000);
    EXPECT_TRUE(std::isnan(from_bf16(convert(bits(0x7F800001)))));
    EXPECT_TRUE(std::isnan(from_bf16(convert(bits(0xFFFFFFFF)))));
    EXPECT_EQ(convert(std::numeric_limits<float>::max()), 0x7F80);  // rounds beyond bf16's largest
  }
}

TEST(FloatConvert, EveryBf16PatternComesBack) {
  for (std::uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const float value = from_bf16(static_cast<std::uint16_t>(pattern));
    if (std::isnan(value)) continue;
    EXPECT_EQ(to_bf16_even(value), pattern);
    EXPECT_EQ(to_bf16_away(value), pattern);
  }
}

TEST(FloatConvert, Fp16MatchesItsDefinition) {
  for (std::uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const int exponent = static_cast<int>(pattern >> 10 & 0x1F);
    const int fraction = static_cast<int>(pattern & 0x3FF);
    const float value = from_fp16(static_cast<std::uint16_t>(pattern));
    ASSERT_EQ(std::signbit(value), (pattern & 0x8000) != 0) << pattern;
    if (exponent == 31) {
      ASSERT_EQ(std::isnan(value), fraction != 0);
      ASSERT_EQ(std::isinf(value), fraction == 0);
    } else {
      const double magnitude =
          exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
      ASSERT_EQ(std::fabs(value), magnitude) << pattern;
    }
  }
}

}  // namespace
}  // namespace zinf::model
