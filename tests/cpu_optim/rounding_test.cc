// Stochastic rounding and the 8-bit codes: no bias, bounded error, golden values of the random
// bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "cpu_optim/kernel_formats.h"
#include "cpu_optim/vec_scalar.h"
#include "tests/cpu_optim/piece.h"

namespace zinf::optim {
namespace {

constexpr std::uint32_t kGolden[] = {0xC15EA086u, 0x229B3E02u, 0xA67A32F3u, 0x5EA0u};

// Of one element of a quantum: for its moments, for its weight.
std::uint32_t random_at(std::uint64_t key, std::int64_t lane) {
  const Bits<Scalar> pair = RandomBits<Scalar>(key).at<EvenOdd<Scalar>>(lane & ~std::int64_t{1});
  return lane % 2 == 0 ? pair.a : pair.b;
}
std::uint32_t weight_random_at(std::uint64_t key, std::int64_t lane) {
  const std::uint32_t random = random_at(key, lane);
  return RandomBits<Scalar>::for_weight({random, random}).a;
}

std::vector<std::uint64_t> keys_of(std::uint64_t seed, std::int64_t quanta) {
  std::vector<std::uint64_t> keys(static_cast<std::size_t>(quanta));
  for (std::size_t q = 0; q < keys.size(); ++q) keys[q] = random_bits(seed, q);
  return keys;
}

// Changing these changes every run with rounded states.
TEST(Rounding, GoldenBits) {
  const std::uint64_t key = random_bits(random_key(std::uint64_t{7}, 1), 3);
  EXPECT_EQ(kGolden[0], random_at(key, 0)) << std::hex << random_at(key, 0);
  EXPECT_EQ(kGolden[1], random_at(key, 1)) << std::hex << random_at(key, 1);
  EXPECT_EQ(kGolden[2], random_at(key, 255)) << std::hex << random_at(key, 255);
  EXPECT_EQ(kGolden[3], weight_random_at(key, 0)) << std::hex << weight_random_at(key, 0);
}

// Each of the 32 bits is set half of the time; neighbours in lane, quantum and step do not go
// together.
TEST(Rounding, BitsAreFairAndUnrelated) {
  constexpr int kQuanta = 2048;
  double set[32] = {}, same_lane[32] = {}, same_quantum[32] = {}, same_step[32] = {},
         halves[16] = {}, weight_set[16] = {}, with_first[16] = {}, with_second[16] = {};
  const std::uint64_t step1 = random_key(std::uint64_t{42}, 1),
                      step2 = random_key(std::uint64_t{42}, 2);
  for (std::uint64_t q = 0; q < kQuanta; ++q) {
    const std::uint64_t key = random_bits(step1, q), next = random_bits(step1, q + 1),
                        later = random_bits(step2, q);
    for (int lane = 0; lane < 256; ++lane) {
      const std::uint32_t x = random_at(key, lane);
      const std::uint32_t weight = weight_random_at(key, lane);
      const std::uint32_t by_lane = ~(x ^ random_at(key, (lane + 1) % 256));
      const std::uint32_t by_quantum = ~(x ^ random_at(next, lane)),
                          by_step = ~(x ^ random_at(later, lane));
      for (int bit = 0; bit < 32; ++bit) {
        set[bit] += x >> bit & 1;
        same_lane[bit] += by_lane >> bit & 1;
        same_quantum[bit] += by_quantum >> bit & 1;
        same_step[bit] += by_step >> bit & 1;
        if (bit >= 16) continue;
        halves[bit] += ~(x ^ (x >> 16)) >> bit & 1;  // first against second moment
        weight_set[bit] += weight >> bit & 1;
        with_first[bit] += ~(x ^ weight) >> bit & 1;
        with_second[bit] += ~(x >> 16 ^ weight) >> bit & 1;
      }
    }
  }
  const double n = 256.0 * kQuanta, bound = 5 * std::sqrt(n) / 2;
  for (int bit = 0; bit < 32; ++bit) {
    EXPECT_NEAR(n / 2, set[bit], bound) << bit;
    EXPECT_NEAR(n / 2, same_lane[bit], bound) << bit;
    EXPECT_NEAR(n / 2, same_quantum[bit], bound) << bit;
    EXPECT_NEAR(n / 2, same_step[bit], bound) << bit;
    if (bit < 16) {
      EXPECT_NEAR(n / 2, halves[bit], bound) << bit;
      EXPECT_NEAR(n / 2, weight_set[bit], bound) << bit;
      EXPECT_NEAR(n / 2, with_first[bit], bound) << bit;
      EXPECT_NEAR(n / 2, with_second[bit], bound) << bit;
    }
  }
}

// bf16 weights: the mean over elements and steps is the exact value, for each place between two
// bf16 numbers.
TEST(Rounding, Bf16WeightsHaveNoBias) {
  Format format{Algorithm::kSgd, WeightDtype::kBf16, MasterWeights::kBf16Sr};
  format.has_momentum = false;
  constexpr std::int64_t kElements = 65536;
  const Optimizer optimizer(format, {});
  for (const float share : {0.001f, 0.1f, 0.25f, 0.5f, 0.9f}) {
    double sum = 0, ups = 0;
    constexpr int kSteps = 4;
    for (int s = 1; s <= kSteps; ++s) {
      Piece piece(format, kElements);
      piece.set_weights(std::vector<float>(kElements, 1.0f));
      const std::vector<float> gradient(kElements, -share * 0x1p-7f);  // 2^-7: bf16's step above 1
      step(optimizer, piece, gradient, scalars_of(s, 1.0), 0.0);
      for (const float weight : piece.master()) {
        ASSERT_TRUE(weight == 1.0f || weight == 1.0f + 0x1p-7f) << weight;
        ups += weight != 1.0f;
        sum += weight;
      }
    }
    const double n = double{kElements} * kSteps;
    EXPECT_NEAR(share, ups / n, 5 * std::sqrt(share * (1 - share) / n)) << share;
    EXPECT_NEAR(1.0 + share * 0x1p-7, sum / n, 0x1p-7 * 5 * std::sqrt(share * (1 - share) / n));
  }
}

// bf16 moments: neighbours of the exact value only, mean exact.
TEST(Rounding, Bf16MomentsHaveNoBias) {
  const Format format{Algorithm::kAdamW, WeightDtype::kFp32, MasterWeights::kFp32,
                      StateDtype::kBf16};
  constexpr std::int64_t kElements = 65536;
  Piece piece(format, kElements);
  const float g = 0.7123f;
  step(Optimizer(format, {}), piece, std::vector<float>(kElements, g), scalars_of(1));
  std::vector<float> first(kElements), second(kElements);
  bf16_to_fp32(piece.as<std::uint16_t>(1), first.data(), kElements);
  bf16_to_fp32(piece.as<std::uint16_t>(2), second.data(), kElements);
  for (const auto& [values, exact] :
       {std::pair{first, 0.1 * g}, std::pair{second, 0.001 * g * g}}) {
    double mean = 0;
    for (const float value : values) {
      ASSERT_NEAR(exact, value, exact * 0x1p-7);
      mean += value / double{kElements};
    }
    EXPECT_NEAR(exact, mean, exact * 0x1p-7 * 5 / std::sqrt(double{kElements}));
  }
}

// Encodes and decodes one block many times with different keys.
struct Trip {
  std::vector<double> mean = std::vector<double>(kQuantum);
};

template <typename Check>
Trip round_trips(const std::vector<float>& block, bool is_signed, Isa isa, int trips, Check check) {
  const KernelTable& table = kernels(isa);
  Trip trip;
  std::vector<unsigned char> codes(260);
  std::vector<float> back(kQuantum);
  for (int t = 0; t < trips; ++t) {
    const auto keys = keys_of(static_cast<std::uint64_t>(t), 1);
    if (is_signed) {
      table.encode_signed(block.data(), codes.data(), 1, keys.data());
      table.decode_signed(codes.data(), back.data(), 1);
    } else {
      table.encode_unsigned(block.data(), codes.data(), 1, keys.data());
      table.decode_unsigned(codes.data(), back.data(), 1);
    }
    for (std::size_t i = 0; i < back.size(); ++i) {
      check(block[i], back[i]);
      trip.mean[i] += static_cast<double>(back[i]) / trips;
    }
  }
  return trip;
}

TEST(Int8, FirstMomentsAreWithinASixteenth) {
  for (const Isa isa : available_isas()) {
    std::vector<float> block(kQuantum);
    for (std::size_t i = 0; i < block.size(); ++i) {
      block[i] =
          static_cast<float>(random_normal(1, i) * std::pow(10.0, -static_cast<double>(i % 7)));
    }
    block[10] = 0.0f;
    const float largest = std::fabs(*std::max_element(
        block.begin(), block.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
    const Trip trip = round_trips(block, true, isa, 4000, [&](float x, float y) {
      ASSERT_LE(std::fabs(x - y), std::fabs(x) / 16 * 1.001f + largest / 3900)
          << x << ' ' << y << ' ' << name(isa);
      ASSERT_TRUE(x != 0.0f || y == 0.0f);
      ASSERT_LE(std::fabs(y), largest * 1.00001f);
    });
    for (std::size_t i = 0; i < block.size(); ++i) {
      const double step = std::fabs(block[i]) / 16 + largest / 3900;
      EXPECT_NEAR(block[i], trip.mean[i], step * 0.5 * 5 / std::sqrt(4000.0)) << i;
    }
  }
}

// The documentation's bound: a step is the range in octaves / 254 of the value.
TEST(Int8, SecondMomentsKeepTheirSizeAndNeverVanish) {
  for (const Isa isa : available_isas()) {
    for (const double spread : {0.0, 1.0, 4.0, 12.0, 24.0}) {  // octaves
      std::vector<float> block(kQuantum);
      for (std::size_t i = 0; i < block.size(); ++i) {
        block[i] = static_cast<float>(1e-7 * std::exp2(-spread * random_uniform(3, i)));
      }
      block[7] = 0.0f;
      // The range is rounded outward to bf16.
      const double bound = (spread + 0.04) / 254 * 1.01;
      const Trip trip = round_trips(block, false, isa, 2000, [&](float x, float y) {
        ASSERT_EQ(x == 0.0f, y == 0.0f);
        ASSERT_LE(std::fabs(x - y), x * bound)
            << x << ' ' << y << " spread " << spread << ' ' << name(isa);
      });
      double mean = 0, exact = 0;
      for (std::size_t i = 0; i < block.size(); ++i) {
        mean += trip.mean[i];
        exact += block[i];
      }
      EXPECT_NEAR(1.0, mean / exact, 1e-3) << spread;
    }
  }
}

// The ends of the number range, and a block that holds one number.
TEST(Int8, Extremes) {
  for (const Isa isa : available_isas()) {
    std::vector<float> block(kQuantum, 0.0f);
    block[0] = 3.4028235e38f;
    block[1] = 1e-45f;
    block[2] = 1.0f;
    round_trips(block, false, isa, 10, [&](float x, float y) {
      ASSERT_TRUE(std::isfinite(y));
      ASSERT_EQ(x == 0.0f, y == 0.0f);
      if (x > 1e38f) {
        ASSERT_GT(y, 3.3e38f);
      }
    });
    round_trips(block, true, isa, 10, [&](float x, float y) {
      ASSERT_TRUE(std::isfinite(y));
      if (x > 1e38f) {
        ASSERT_GT(y, 3.1e38f);
      }
    });
    const std::vector<float> same(kQuantum, 0.0123f);
    round_trips(same, false, isa, 10, [&](float x, float y) { ASSERT_NEAR(x, y, x * 0.004); });
    round_trips(same, true, isa, 10, [&](float x, float y) { ASSERT_NEAR(x, y, x * 1e-5); });
    const std::vector<float> denormal(kQuantum, 3e-42f);
    round_trips(denormal, false, isa, 10, [&](float, float y) { ASSERT_GT(y, 0.0f); });
    round_trips(denormal, true, isa, 10, [&](float, float y) { ASSERT_EQ(0.0f, y); });
  }
}

}  // namespace
}  // namespace zinf::optim
