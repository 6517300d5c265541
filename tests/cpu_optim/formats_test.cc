// Every format trains: on a noisy quadratic with curvatures of 1 to 1/256 it ends about where fp32
// ends, on average over rounding bits.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/cpu_optim/piece.h"

namespace zinf::optim {
namespace {

constexpr std::int64_t kElements = 2048;
constexpr int kSteps = 600;
constexpr int kSeeds = 8;  // one run's loss varies by a ninth with int8 moments

double target(std::int64_t i) { return random_normal(21, static_cast<std::uint64_t>(i)); }
double curvature(std::int64_t i) { return std::exp2(-static_cast<double>(i % 9)); }

std::vector<float> make_noise() {
  std::vector<float> noise(static_cast<std::size_t>(kElements) * kSteps);
  for (std::size_t i = 0; i < noise.size(); ++i)
    noise[i] = static_cast<float>(random_normal(22, i));
  return noise;
}

// Mean of curvature * distance^2 after the run.
double loss_after(const Format& format, const std::vector<float>& noise, std::uint64_t seed) {
  Hyper hyper = hyper_of(format);
  if (format.algorithm == Algorithm::kLion) hyper.beta2 = 0.99;
  const double lr = format.algorithm == Algorithm::kAdagrad ? 0.3
                    : format.algorithm == Algorithm::kSgd   ? 0.1
                                                            : 0.02;
  const Optimizer optimizer(format, hyper);
  Piece piece(format, kElements);
  std::vector<float> gradient(kElements), weights;
  std::vector<double> targets(kElements);
  for (std::int64_t i = 0; i < kElements; ++i) targets[static_cast<std::size_t>(i)] = target(i);
  for (int s = 1; s <= kSteps; ++s) {
    weights = piece.master();
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double error =
          weights[i] - targets[i] + 0.1 * noise[(static_cast<std::size_t>(s) - 1) * kElements + i];
      gradient[i] = static_cast<float>(curvature(static_cast<std::int64_t>(i)) * error);
    }
    StepScalars scalars = scalars_of(s, lr * (1.0 - static_cast<double>(s - 1) / kSteps));
    scalars.seed = seed;
    step(optimizer, piece, gradient, scalars, 0.0);
  }
  weights = piece.master();
  double loss = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double distance = weights[i] - targets[i];
    loss += curvature(static_cast<std::int64_t>(i)) * distance * distance / kElements;
  }
  return loss;
}

double mean_loss(const Format& format, const std::vector<float>& noise) {
  double sum = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) sum += loss_after(format, noise, seed);
  return sum / kSeeds;
}

TEST(Formats, EveryOneTrains) {
  const std::vector<float> noise = make_noise();
  for (const Algorithm algorithm :
       {Algorithm::kAdamW, Algorithm::kLion, Algorithm::kAdagrad, Algorithm::kSgd}) {
    const double fp32 = loss_after({algorithm}, noise, 1);
    for (const StateDtype moments : {StateDtype::kBf16, StateDtype::kInt8}) {
      const Format exact{algorithm, WeightDtype::kFp32, MasterWeights::kFp32, moments};
      EXPECT_LE(mean_loss(exact, noise), 1.12 * fp32) << describe(exact, best_isa());
      const Format rounded{algorithm, WeightDtype::kBf16, MasterWeights::kBf16Sr, moments};
      EXPECT_LE(mean_loss(rounded, noise), 1.1 * fp32 + 1e-4) << describe(rounded, best_isa());
    }
  }
}

}  // namespace
}  // namespace zinf::optim
