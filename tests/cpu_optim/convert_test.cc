#include "cpu_optim/convert.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "cpu_optim/threads.h"
#include "engine/base/random.h"

namespace zinf::optim {
namespace {

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }
bool is_nan(std::uint32_t bits) { return (bits & 0x7FFFFFFFu) > 0x7F800000u; }
float widen(std::uint16_t bf16) { return from_bits(std::uint32_t{bf16} << 16); }

TEST(Convert, Bf16RoundsToNearestEven) {
  for (const Isa isa : available_isas()) {
    const auto rounded = [&](float x) {
      std::uint16_t bits;
      fp32_to_bf16(&x, &bits, 1, isa);
      return widen(bits);
    };
    EXPECT_EQ(1.0f, rounded(1.0f + 0x1p-8f));
    EXPECT_EQ(1.015625f, rounded(1.0f + 3 * 0x1p-8f));
    EXPECT_EQ(1.0078125f, rounded(1.0f + 0x1p-8f + 0x1p-20f));
    EXPECT_EQ(INFINITY, rounded(3.3961775e38f));
    EXPECT_TRUE(std::isnan(rounded(from_bits(0x7F800001))));
    EXPECT_TRUE(std::isnan(rounded(from_bits(0xFFFFFFFF))));
    EXPECT_EQ(-INFINITY, rounded(-INFINITY));
    EXPECT_TRUE(std::signbit(rounded(-0.0f)));
  }
}

TEST(Convert, MasterRoundsTiesAway) {
  for (const Isa isa : available_isas()) {
    const auto rounded = [&](float x) {
      std::uint16_t bits;
      master_to_bf16(&x, &bits, 1, isa);
      return widen(bits);
    };
    EXPECT_EQ(1.0078125f, rounded(1.0f + 0x1p-8f));
    EXPECT_EQ(-1.0078125f, rounded(-1.0f - 0x1p-8f));
    EXPECT_EQ(1.0f, rounded(from_bits(0x3F807FFF)));
    EXPECT_EQ(1.015625f, rounded(1.0f + 3 * 0x1p-8f));
    EXPECT_EQ(INFINITY, rounded(3.3961775e38f));
    EXPECT_TRUE(std::isnan(rounded(from_bits(0x7F800001))));
    EXPECT_TRUE(std::isnan(rounded(from_bits(0xFFFFFFFF))));
  }
}

// All bit patterns with the same high half, [first, first + 2^16): the pair rebuilds the master,
// its weight is the rounded master, NaN stays NaN. Returns the number of NaNs that come back as
// another NaN, or -1 for a fault.
class SplitCheck {
 public:
  std::int64_t run(std::uint32_t first, Isa isa) {
    for (std::uint32_t i = 0; i < kStretch; ++i) master_[i] = from_bits(first + i);
    split_master(master_.data(), weight_.data(), remainder_.data(), kStretch, isa);
    join_master(weight_.data(), remainder_.data(), back_.data(), kStretch, isa);
    master_to_bf16(master_.data(), rounded_.data(), kStretch, isa);
    if (weight_ != rounded_) return -1;
    if ((first & 0x7F800000u) == 0x7F800000u) return run_nan(first);
    // Numbers: the lower half of the stretch rounds down, the upper up.
    const auto down = static_cast<std::uint16_t>(first >> 16),
               up = static_cast<std::uint16_t>((first >> 16) + 1);
    std::uint32_t faults = 0;
    for (std::uint32_t i = 0; i < kStretch / 2; ++i) {
      faults |= static_cast<std::uint32_t>(weight_[i] ^ down) |
                static_cast<std::uint32_t>(weight_[i + kStretch / 2] ^ up);
    }
    const bool exact = std::memcmp(master_.data(), back_.data(), kStretch * sizeof(float)) == 0;
    return faults == 0 && exact ? 0 : -1;
  }

 private:
  static constexpr std::uint32_t kStretch = 1u << 16;

  // Infinity and the NaNs.
  std::int64_t run_nan(std::uint32_t first) const {
    std::int64_t changed = 0;
    for (std::uint32_t i = 0; i < kStretch; ++i) {
      const std::uint32_t bits = first + i, again = std::bit_cast<std::uint32_t>(back_[i]);
      if (is_nan(bits) != is_nan(std::uint32_t{weight_[i]} << 16)) return -1;
      if (bits == again) continue;
      if (!is_nan(bits) || !is_nan(again)) return -1;
      ++changed;
    }
    return changed;
  }

  std::vector<float> master_ = std::vector<float>(kStretch), back_ = master_;
  std::vector<std::uint16_t> weight_ = std::vector<std::uint16_t>(kStretch), rounded_ = weight_;
  std::vector<std::int16_t> remainder_ = std::vector<std::int16_t>(kStretch);
};

TEST(Convert, SplitIsExactForEveryPattern) {
  const Pool pool;
  std::vector<std::int64_t> changed(1u << 16);
  pool.for_ranges(std::int64_t{1} << 32, [&](std::int64_t begin, std::int64_t end) {
    SplitCheck check;
    // A stretch belongs to the range that has its first pattern.
    for (std::int64_t high = (begin + 0xFFFF) >> 16; high << 16 < end; ++high) {
      changed[static_cast<std::size_t>(high)] =
          check.run(static_cast<std::uint32_t>(high << 16), best_isa());
    }
  });
  std::int64_t sum = 0;
  for (std::size_t high = 0; high < changed.size(); ++high) {
    ASSERT_GE(changed[high], 0) << "patterns from " << std::hex << (high << 16);
    sum += changed[high];
  }
  // As many NaNs as there are pairs too few: see convert.h.
  EXPECT_EQ(131070, sum);
}

TEST(Convert, SplitIsExactOnEverySet) {
  SplitCheck check;
  for (const Isa isa : available_isas()) {
    for (const std::uint32_t high : {0x0000u, 0x0001u, 0x3F80u, 0x7F7Fu, 0x7F80u, 0x7FBFu, 0x7FFFu,
                                     0x8000u, 0xBF80u, 0xFF80u, 0xFFFFu}) {
      EXPECT_GE(check.run(high << 16, isa), 0) << name(isa) << std::hex << high;
    }
  }
}

// fp16 against the definition, every pattern both ways.
TEST(Convert, Fp16) {
  for (const Isa isa : available_isas()) {
    std::vector<std::uint16_t> all(1u << 16), back(1u << 16);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    std::vector<float> wide(all.size());
    fp16_to_fp32(all.data(), wide.data(), static_cast<std::int64_t>(all.size()), isa);
    fp32_to_fp16(wide.data(), back.data(), static_cast<std::int64_t>(all.size()), isa);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const int exponent = (all[i] >> 10) & 31, fraction = all[i] & 1023;
      if (exponent == 31 && fraction != 0) {
        EXPECT_TRUE(std::isnan(wide[i]));
        EXPECT_EQ(all[i] | 0x200, back[i]);
        continue;
      }
      const double size = exponent == 31  ? INFINITY
                          : exponent == 0 ? std::ldexp(fraction, -24)
                                          : std::ldexp(1024 + fraction, exponent - 25);
      ASSERT_EQ(all[i] & 0x8000 ? -size : size, wide[i]);
      ASSERT_EQ(all[i], back[i]) << i;
    }
    // Halfway between neighbours: to even. Above 65,504 + 16: infinity.
    const float values[] = {1.0f + 0x1p-11f, 1.0f + 3 * 0x1p-11f, 65519.996f, 65520.0f,
                            0x1p-25f,        0x1.8p-25f,          -1e-10f,    1e30f};
    const std::uint16_t expected[] = {0x3C00, 0x3C02, 0x7BFF, 0x7C00,
                                      0x0000, 0x0001, 0x8000, 0x7C00};
    std::uint16_t rounded[8];
    fp32_to_fp16(values, rounded, 8, isa);
    for (int i = 0; i < 8; ++i) EXPECT_EQ(expected[i], rounded[i]) << values[i] << ' ' << name(isa);
  }
}

// Every set gives scalar's bits on random bit patterns, NaNs among them, at every length; nothing
// is written beyond.
TEST(Convert, SetsAgreeOnEveryLength) {
  for (const Isa isa : available_isas()) {
    for (std::int64_t n = 0; n <= 51; ++n) {
      std::array<float, 64> in{}, row{};
      for (std::size_t i = 0; i < in.size(); ++i) {
        std::uint32_t bits =
            static_cast<std::uint32_t>(random_bits(static_cast<std::uint64_t>(n), i));
        if (i % 7 == 0) bits |= 0x7F800000u;
        in[i] = from_bits(bits);
        row[i] = from_bits(bits >> 2);
      }
      const auto all = [&](Isa set) {
        std::array<std::uint16_t, 320> half{};
        std::array<float, 192> wide{};
        std::array<std::int16_t, 64> rest{};
        fp32_to_bf16(in.data() + 1, half.data() + 1, n, set);
        master_to_bf16(in.data() + 1, half.data() + 65, n, set);
        fp32_to_fp16(in.data() + 1, half.data() + 129, n, set);
        split_master(in.data() + 1, half.data() + 193, rest.data() + 1, n, set);
        join_master(half.data() + 193, rest.data() + 1, wide.data() + 1, n, set);
        bf16_to_fp32(half.data() + 1, wide.data() + 65, n, set);
        fp16_to_fp32(half.data() + 129, wide.data() + 129, n, set);
        std::array<float, 64> sum = row;
        add_rows(sum.data() + 1, row.data(), n, set);
        std::vector<std::byte> bytes(sizeof half + sizeof wide + sizeof rest + sizeof sum);
        std::memcpy(bytes.data(), &half, sizeof half);
        std::memcpy(bytes.data() + sizeof half, &wide, sizeof wide);
        std::memcpy(bytes.data() + sizeof half + sizeof wide, &rest, sizeof rest);
        std::memcpy(bytes.data() + sizeof half + sizeof wide + sizeof rest, &sum, sizeof sum);
        return bytes;
      };
      ASSERT_EQ(all(Isa::kScalar), all(isa)) << name(isa) << " length " << n;
    }
  }
}

// Sums of fp32 rows keep what bf16 sums lose.
TEST(Convert, RowsAreSummedInFp32) {
  float sum = 1.0f;
  const float row = 0x1p-9f;
  for (int i = 0; i < 512; ++i) add_rows(&sum, &row, 1);
  EXPECT_EQ(2.0f, sum);
}

}  // namespace
}  // namespace zinf::optim
