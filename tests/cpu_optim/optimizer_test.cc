#include "cpu_optim/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/cpu_optim/piece.h"
#include "tests/cpu_optim/reference.h"

namespace zinf::optim {
namespace {

// A single weight, one step after the other.
std::vector<double> weights_after(const Format& format, const Hyper& hyper, double decay, double lr,
                                  const std::vector<float>& gradients, Isa isa) {
  const Optimizer optimizer(format, hyper, isa);
  Piece piece(format, 1);
  piece.set_weights({1.0f});
  std::vector<double> weights;
  for (std::size_t s = 0; s < gradients.size(); ++s) {
    step(optimizer, piece, {gradients[s]}, scalars_of(static_cast<std::int64_t>(s) + 1, lr), decay);
    weights.push_back(piece.master()[0]);
  }
  return weights;
}

// Decoupled and L2 decay are two things, and bias correction is on.
TEST(Optimizer, AdamWAndAdamDifferInDecay) {
  for (const Isa isa : available_isas()) {
    const std::vector<float> gradients = {1.0f, -0.5f, 0.25f};
    const auto adamw = weights_after({Algorithm::kAdamW}, {}, 0.1, 0.01, gradients, isa);
    const auto adam = weights_after({Algorithm::kAdam}, {}, 0.1, 0.01, gradients, isa);
    const double expected_adamw[] = {0.9890000001, 0.9853476297, 0.9809579907};
    const double expected_adam[] = {0.9900000001, 0.9862548206, 0.9816557609};
    for (int s = 0; s < 3; ++s) {
      EXPECT_NEAR(expected_adamw[s], adamw[s], 6e-8 * (s + 1)) << name(isa);
      EXPECT_NEAR(expected_adam[s], adam[s], 6e-8 * (s + 1)) << name(isa);
    }
    Hyper uncorrected;
    uncorrected.bias_correction = false;
    EXPECT_NEAR(0.9673772334,
                weights_after({Algorithm::kAdamW}, uncorrected, 0.1, 0.01, gradients, isa)[0],
                6e-8);
  }
}

// Decay of 1e-5 a step reaches the master; bf16 alone, rounded to nearest, would stay at 1.
TEST(Optimizer, SmallDecayIsNotLost) {
  const Format formats[] = {{Algorithm::kAdamW},
                            {Algorithm::kAdamW, WeightDtype::kBf16, MasterWeights::kFp32},
                            {Algorithm::kAdamW, WeightDtype::kBf16, MasterWeights::kSplit}};
  for (const Format& format : formats) {
    const auto weights =
        weights_after(format, {}, 1e-3, 1e-2, std::vector<float>(1000, 0.0f), best_isa());
    EXPECT_NEAR(0.990049784, weights.back(), 1e-6) << describe(format, best_isa());
  }
  // Stochastic rounding keeps the expectation: 4,096 weights together follow it.
  const Format rounded{Algorithm::kAdamW, WeightDtype::kBf16, MasterWeights::kBf16Sr};
  const Optimizer optimizer(rounded, {});
  Piece piece(rounded, 4096);
  piece.set_weights(std::vector<float>(4096, 1.0f));
  for (int s = 1; s <= 1000; ++s)
    step(optimizer, piece, std::vector<float>(4096, 0.0f), scalars_of(s), 1e-3);
  double mean = 0;
  for (const float weight : piece.master()) mean += weight / 4096.0;
  EXPECT_NEAR(0.990049784, mean, 3e-4);
}

// One step from equal inputs, every element compared with fp64.
void expect_close(Algorithm algorithm, const Hyper& hyper, const StepScalars& scalars,
                  Piece& before, Piece& after, const std::vector<float>& gradient,
                  const std::string& what) {
  const bool two = algorithm == Algorithm::kAdamW || algorithm == Algorithm::kAdam;
  const bool squares = two || algorithm == Algorithm::kAdagrad;
  const std::size_t first = 1, second = two ? 2 : 1;
  // With L2 the gradient that Adam squares is itself a rounded sum: one more.
  const double allowed = algorithm == Algorithm::kAdam ? 3 : 2;
  for (std::int64_t i = 0; i < before.elements(); ++i) {
    const float g = gradient[static_cast<std::size_t>(i)];
    const double m = before.as<float>(first)[i], v = before.as<float>(second)[i];
    const Reference r =
        reference_step(algorithm, hyper, {1.0, 0.01}, scalars, before.as<float>(0)[i], m, v, g);
    // Lion: where the sum is a denormal, fp32 may see zero.
    const bool tiny = algorithm == Algorithm::kLion && std::fabs(m) + std::fabs(g) < 1e-36;
    if (!tiny) {
      ASSERT_LE(std::fabs(r.weight - after.as<float>(0)[i]), allowed * r.weight_ulp)
          << what << " element " << i;
    }
    if (algorithm != Algorithm::kAdagrad) {
      ASSERT_LE(std::fabs(r.first - after.as<float>(first)[i]), allowed * r.first_ulp)
          << what << " element " << i;
    }
    if (squares) {
      ASSERT_LE(std::fabs(r.second - after.as<float>(second)[i]), allowed * r.second_ulp)
          << what << " element " << i;
    }
  }
}

TEST(Optimizer, IsWithinTwoUlpOfTheReference) {
  for (const Isa isa : available_isas()) {
    for (const Algorithm algorithm : {Algorithm::kAdamW, Algorithm::kAdam, Algorithm::kLion,
                                      Algorithm::kAdagrad, Algorithm::kSgd}) {
      const Format format{algorithm};
      const Hyper hyper = hyper_of(format);
      const Optimizer optimizer(format, hyper, isa);
      Piece piece(format, kTile);
      piece.fill(1);
      for (int s = 1; s <= 12; ++s) {
        const std::vector<float> gradient =
            adversarial_gradient(kTile, 100 + static_cast<std::uint64_t>(s));
        StepScalars scalars = scalars_of(s);
        scalars.gradient_factor = s % 2 == 0 ? 1.0 : 0.25;
        Piece before = piece;
        step(optimizer, piece, gradient, scalars);
        expect_close(algorithm, hyper, scalars, before, piece, gradient,
                     describe(format, isa) + " step " + std::to_string(s));
      }
    }
  }
}

// Gradients whose square overflows fp32: the second moment stops at the largest number, weights
// stay finite.
TEST(Optimizer, HugeGradientsLeaveFiniteStates) {
  for (const Algorithm algorithm : {Algorithm::kAdamW, Algorithm::kAdam, Algorithm::kAdagrad}) {
    const Format format{algorithm};
    Piece piece(format, 256);
    piece.fill(3);
    const Optimizer optimizer(format, {});
    for (int s = 1; s <= 50; ++s)
      step(optimizer, piece, std::vector<float>(256, s % 5 ? 1e38f : 0.0f), scalars_of(s));
    for (std::size_t state = 0; state < piece.specs().size(); ++state) {
      for (int i = 0; i < 256; ++i) ASSERT_TRUE(std::isfinite(piece.as<float>(state)[i]));
    }
  }
}

// Padding: zero weights with zero gradients stay zero, in every format and also with eps 0.
TEST(Optimizer, ZeroStaysZero) {
  for (const Format& format : all_formats()) {
    Hyper hyper = hyper_of(format);
    hyper.eps = 0;
    Piece piece(format, 512);
    for (int s = 1; s <= 3; ++s)
      step(Optimizer(format, hyper), piece, std::vector<float>(512, 0.0f), scalars_of(s));
    for (std::size_t state = 0; state < piece.specs().size(); ++state) {
      for (Bytes i = 0; i < piece.specs()[state].bytes(512); ++i) {
        ASSERT_EQ(std::byte{0}, piece.state(state)[i]) << describe(format, best_isa());
      }
    }
  }
}

// moments_are_zero reads nothing: garbage there changes nothing.
TEST(Optimizer, FirstStepTakesMomentsAsZero) {
  for (const Format& format : all_formats()) {
    const Optimizer optimizer(format, hyper_of(format));
    Piece clean(format, 1024), dirty(format, 1024);
    clean.fill(5);
    dirty.fill(5);
    for (std::size_t s = 0; s < dirty.specs().size(); ++s) {
      if (dirty.specs()[s].is_moment)
        std::memset(dirty.state(s), 0xFF, dirty.specs()[s].bytes(1024));
    }
    const std::vector<float> gradient = adversarial_gradient(1024, 9);
    StepScalars scalars = scalars_of(1);
    step(optimizer, dirty, gradient, scalars);
    scalars.moments_are_zero = false;
    step(optimizer, clean, gradient, scalars);
    EXPECT_EQ(clean.bytes(), dirty.bytes()) << describe(format, best_isa());
  }
}

// Each group has its own rate and decay; padding between groups is not counted.
TEST(Optimizer, GroupsHaveTheirOwnRates) {
  const Format format{Algorithm::kSgd, WeightDtype::kFp32, MasterWeights::kFp32, StateDtype::kFp32,
                      false};
  const Optimizer optimizer(format, {});
  Piece piece(format, 4096 + 512);
  piece.set_weights(std::vector<float>(4608, 1.0f));
  const std::vector<GroupRange> ranges = {{0, 250, 0}, {256, 256, 1}, {512, 4000, 0}};
  const std::vector<Group> groups = {{1.0, 0.0}, {0.5, 1.0}};
  const std::vector<float> gradient(4608, 1.0f);
  Pool pool(2);
  const std::int64_t updated = optimizer.update(pool, piece.view(), gradient.data(), 0, 4608,
                                                ranges, groups, scalars_of(1, 0.25));
  EXPECT_EQ(250 + 256 + 4000, updated);
  EXPECT_EQ(0.75f, piece.master()[0]);
  EXPECT_EQ(0.75f, piece.master()[255]);  // padding goes with the range before it
  EXPECT_EQ(0.75f, piece.master()[256]);  // 1 - 0.125 * (1 + 1)
  EXPECT_EQ(0.75f, piece.master()[511]);
  EXPECT_EQ(0.75f, piece.master()[4607]);
  const std::vector<Group> other = {{1.0, 0.0}, {0.5, 0.0}};
  optimizer.update(pool, piece.view(), gradient.data(), 0, 4608, ranges, other,
                   scalars_of(2, 0.25));
  EXPECT_EQ(0.5f, piece.master()[255]);
  EXPECT_EQ(0.625f, piece.master()[256]);
  EXPECT_EQ(0.625f, piece.master()[511]);
  EXPECT_EQ(0.5f, piece.master()[512]);
}

// SGD: dampening is not applied in the first step, as in PyTorch; Nesterov's variant.
TEST(Optimizer, SgdVariants) {
  Hyper hyper;
  hyper.momentum = 0.5;
  hyper.dampening = 0.5;
  const auto damped = weights_after({Algorithm::kSgd}, hyper, 0.0, 0.5, {1.0f, 1.0f}, best_isa());
  EXPECT_EQ(0.5, damped[0]);
  EXPECT_EQ(0.0, damped[1]);  // buffer 0.5 + 0.5
  hyper.dampening = 0;
  hyper.nesterov = true;
  const auto nesterov = weights_after({Algorithm::kSgd}, hyper, 0.0, 0.5, {1.0f, 1.0f}, best_isa());
  EXPECT_EQ(0.25, nesterov[0]);    // direction 1 + 0.5
  EXPECT_EQ(-0.625, nesterov[1]);  // buffer 1.5, direction 1 + 0.75
}

}  // namespace
}  // namespace zinf::optim
