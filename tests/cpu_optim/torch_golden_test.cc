// A thousand steps beside PyTorch: our distance from the fp64 run is at most PyTorch's own in fp32.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/cpu_optim/piece.h"
#include "tests/cpu_optim/torch_golden.h"

namespace zinf::optim {
namespace {

std::uint32_t mix(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}

float number(std::uint32_t index, int spread) {
  return std::ldexp(static_cast<float>(static_cast<int>(mix(index) % 4096) - 2048) / 2048.0f,
                    spread);
}

std::vector<float> gradient_of(int step) {
  std::vector<float> gradient(golden::kElements);
  for (int i = 0; i < golden::kElements; ++i) {
    gradient[static_cast<std::size_t>(i)] =
        number(static_cast<std::uint32_t>(step * golden::kElements + i), -(i % 8)) +
        std::ldexp(static_cast<float>(i % 3 - 1), -2 - i % 8);
  }
  return gradient;
}

double rms(const double* a, const double* b) {
  double sum = 0;
  for (int i = 0; i < golden::kElements; ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum / golden::kElements);
}

void expect_golden(const golden::Golden& expected, Format format, const Hyper& hyper, double lr,
                   double decay) {
  for (const Isa isa : available_isas()) {
    const Optimizer optimizer(format, hyper, isa);
    Piece piece(format, golden::kElements);
    std::vector<float> weights(golden::kElements);
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] = number(static_cast<std::uint32_t>(i) + 7777777, 0);
    piece.set_weights(weights);
    for (int s = 0; s < golden::kSteps; ++s)
      step(optimizer, piece, gradient_of(s), scalars_of(s + 1, lr), decay);
    double ours[golden::kElements];
    for (int i = 0; i < golden::kElements; ++i)
      ours[i] = piece.master()[static_cast<std::size_t>(i)];
    EXPECT_LE(rms(ours, expected.fp64), rms(expected.fp32, expected.fp64)) << describe(format, isa);
  }
}

TEST(TorchGolden, AdamW) {
  for (const MasterWeights master : {MasterWeights::kFp32, MasterWeights::kSplit}) {
    expect_golden(golden::kAdamW, {Algorithm::kAdamW, WeightDtype::kBf16, master}, {}, 1e-2, 0.1);
  }
  expect_golden(golden::kAdamW, {Algorithm::kAdamW}, {}, 1e-2, 0.1);
}

TEST(TorchGolden, Adam) { expect_golden(golden::kAdam, {Algorithm::kAdam}, {}, 1e-2, 0.01); }

TEST(TorchGolden, Lion) {
  Hyper hyper;
  hyper.beta2 = 0.99;
  expect_golden(golden::kLion, {Algorithm::kLion}, hyper, 1e-3, 0.1);
}

TEST(TorchGolden, Adagrad) {
  Hyper hyper;
  hyper.eps = 1e-10;
  hyper.lr_decay = 1e-3;
  hyper.initial_accumulator = 0.5;
  expect_golden(golden::kAdagrad, {Algorithm::kAdagrad}, hyper, 1e-1, 0.01);
}

TEST(TorchGolden, Sgd) {
  Hyper hyper;
  hyper.momentum = 0.9;
  hyper.dampening = 0.1;
  expect_golden(golden::kSgd, {Algorithm::kSgd}, hyper, 1e-2, 0.01);
  hyper.dampening = 0;
  hyper.nesterov = true;
  expect_golden(golden::kNesterov, {Algorithm::kSgd}, hyper, 1e-2, 0.01);
}

}  // namespace
}  // namespace zinf::optim
