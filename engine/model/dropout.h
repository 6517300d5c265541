// Dropout whose masks are pure functions of what they are for, so that a recompute, a resume,
// another group or another placement drops the same elements. No LibTorch here.
#pragma once

#include <cmath>
#include <cstdint>

#include "engine/base/random.h"

namespace zinf::model {

// Of a step in which nothing is dropped: evaluation, sampling.
constexpr std::uint64_t kNoDropout = 0;

// The stream of one optimizer step. Every operation that drops has a stream of its own below it:
// random_key(step's key, micro-batch, stage, number of the operation within the stage).
constexpr std::uint64_t dropout_step_key(std::uint64_t seed, std::uint64_t step) {
  constexpr std::uint64_t kPurpose = 0x64726F706F7574;  // "dropout"
  return random_key(kPurpose, seed, step);
}

// What an operation's elements are multiplied by: 0 with probability `rate`, else 1 / (1 - rate),
// as torch.nn.Dropout does. Elements count from 0: position x width + column of hidden states;
// (head x positions + query's position) x row length + key's place in its row of attention weights.
class DropoutMask {
 public:
  DropoutMask(std::uint64_t key, double rate)
      : key_(key),
        below_(static_cast<std::uint32_t>(std::lround(rate * 0x1.0p32))),
        scale_(static_cast<float>(1 / (1 - rate))) {}

  float factor(std::uint64_t element) const {
    const std::uint64_t bits = random_bits(key_, element / 2);
    return factor_of(static_cast<std::uint32_t>(bits >> (32 * (element % 2))));
  }
  // Factors of `count` elements from `first` on.
  void factors(std::uint64_t first, std::int64_t count, float* to) const {
    std::int64_t i = 0;
    if (first % 2 == 1 && count > 0) to[i++] = factor(first);
    for (; i + 1 < count; i += 2) {
      const std::uint64_t bits = random_bits(key_, (first + static_cast<std::uint64_t>(i)) / 2);
      to[i] = factor_of(static_cast<std::uint32_t>(bits));
      to[i + 1] = factor_of(static_cast<std::uint32_t>(bits >> 32));
    }
    if (i < count) to[i] = factor(first + static_cast<std::uint64_t>(i));
  }

 private:
  float factor_of(std::uint32_t bits) const { return bits < below_ ? 0.0f : scale_; }

  std::uint64_t key_;
  std::uint32_t below_;
  float scale_;
};

}  // namespace zinf::model
