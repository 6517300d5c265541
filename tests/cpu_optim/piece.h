// A piece for the optimizer's tests: states with guard bytes, filled from fp32 weights, and
// gradients of several kinds.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "cpu_optim/convert.h"
#include "cpu_optim/optimizer.h"
#include "engine/base/random.h"

namespace zinf::optim {

// All formats there are, for one algorithm.
inline std::vector<Format> formats_of(Algorithm algorithm) {
  std::vector<Format> formats;
  for (const StateDtype moments : {StateDtype::kFp32, StateDtype::kBf16, StateDtype::kInt8}) {
    for (const WeightDtype weight : {WeightDtype::kFp32, WeightDtype::kBf16, WeightDtype::kFp16}) {
      for (const MasterWeights master :
           {MasterWeights::kFp32, MasterWeights::kSplit, MasterWeights::kBf16Sr}) {
        const Format format{algorithm, weight, master, moments, true};
        if (why_invalid(format).empty()) formats.push_back(format);
      }
    }
  }
  return formats;
}

inline std::vector<Format> all_formats() {
  std::vector<Format> formats;
  for (const Algorithm algorithm : {Algorithm::kAdamW, Algorithm::kAdam, Algorithm::kLion,
                                    Algorithm::kAdagrad, Algorithm::kSgd}) {
    const std::vector<Format> some = formats_of(algorithm);
    formats.insert(formats.end(), some.begin(), some.end());
  }
  Format plain{Algorithm::kSgd};
  plain.has_momentum = false;
  formats.push_back(plain);
  return formats;
}

inline Hyper hyper_of(const Format& format) {
  Hyper hyper;
  if (format.algorithm == Algorithm::kSgd && format.has_momentum) hyper.momentum = 0.9;
  return hyper;
}

inline std::string describe(const Format& format, Isa isa) {
  return std::string(name(format.algorithm)) + " weight " + std::string(name(format.weight)) +
         " master " + std::string(name(format.master)) + " moments " +
         std::string(name(format.moments)) + " on " + std::string(name(isa));
}

class Piece {
 public:
  static constexpr std::size_t kGuard = 64;

  Piece(const Format& format, std::int64_t elements)
      : format_(format), specs_(schema(format)), elements_(elements) {
    for (const StateSpec& spec : specs_) {
      bytes_.emplace_back(spec.bytes(elements) + 2 * kGuard, std::byte{0xA5});
      std::memset(bytes_.back().data() + kGuard, 0, spec.bytes(elements));
    }
  }

  // Weights of about 1, from a seed.
  void fill(std::uint64_t seed) {
    std::vector<float> weights(static_cast<std::size_t>(elements_));
    for (std::int64_t i = 0; i < elements_; ++i) {
      weights[static_cast<std::size_t>(i)] =
          static_cast<float>(random_normal(seed, static_cast<std::uint64_t>(i)));
    }
    set_weights(weights);
  }

  void set_weights(const std::vector<float>& weights) {
    const std::int64_t n = elements_;
    if (format_.weight == WeightDtype::kFp32) {
      std::memcpy(state(0), weights.data(), static_cast<std::size_t>(n) * sizeof(float));
    } else if (format_.weight == WeightDtype::kFp16) {
      fp32_to_fp16(weights.data(), as<std::uint16_t>(0), n);
      std::memcpy(state(1), weights.data(), static_cast<std::size_t>(n) * sizeof(float));
    } else if (format_.master == MasterWeights::kSplit) {
      split_master(weights.data(), as<std::uint16_t>(0), as<std::int16_t>(1), n);
    } else {
      master_to_bf16(weights.data(), as<std::uint16_t>(0), n);
      if (format_.master == MasterWeights::kFp32) {
        std::memcpy(state(1), weights.data(), static_cast<std::size_t>(n) * sizeof(float));
      }
    }
  }

  // The exact weights: master, joined pair, or what there is.
  std::vector<float> master() {
    std::vector<float> weights(static_cast<std::size_t>(elements_));
    if (format_.weight == WeightDtype::kFp32) {
      std::memcpy(weights.data(), state(0), weights.size() * sizeof(float));
    } else if (format_.master == MasterWeights::kFp32) {
      std::memcpy(weights.data(), state(1), weights.size() * sizeof(float));
    } else if (format_.master == MasterWeights::kSplit) {
      join_master(as<std::uint16_t>(0), as<std::int16_t>(1), weights.data(), elements_);
    } else {
      bf16_to_fp32(as<std::uint16_t>(0), weights.data(), elements_);
    }
    return weights;
  }

  // The states from this element on.
  StateView view(std::int64_t first_element = 0) {
    StateView view;
    for (std::size_t s = 0; s < specs_.size(); ++s)
      view.state[s] = state(s) + specs_[s].bytes(first_element);
    return view;
  }

  std::byte* state(std::size_t s) { return bytes_[s].data() + kGuard; }
  template <typename T>
  T* as(std::size_t s) {
    return reinterpret_cast<T*>(state(s));
  }
  std::int64_t elements() const { return elements_; }
  const std::vector<StateSpec>& specs() const { return specs_; }
  // Includes the guards.
  const std::vector<std::vector<std::byte>>& bytes() const { return bytes_; }

  void expect_guards(const std::string& what) const {
    for (const std::vector<std::byte>& state : bytes_) {
      for (std::size_t i = 0; i < kGuard; ++i) {
        ASSERT_EQ(std::byte{0xA5}, state[i]) << what;
        ASSERT_EQ(std::byte{0xA5}, state[state.size() - 1 - i]) << what;
      }
    }
  }

 private:
  Format format_;
  std::vector<StateSpec> specs_;
  std::int64_t elements_;
  std::vector<std::vector<std::byte>> bytes_;
};

inline std::vector<float> normal_gradient(std::int64_t elements, std::uint64_t seed) {
  std::vector<float> gradient(static_cast<std::size_t>(elements));
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = static_cast<float>(1e-3 * random_normal(seed, i));
  }
  return gradient;
}

// Normal gradients with zeros, denormals, tiny and huge ones in between.
inline std::vector<float> adversarial_gradient(std::int64_t elements, std::uint64_t seed) {
  std::vector<float> gradient(static_cast<std::size_t>(elements));
  const float special[] = {0.0f,   -0.0f,  1e-45f, -3e-42f, 1e-38f, -1e-30f,
                           1e-19f, 1e-12f, -1e-8f, 1.0f,    1e4f,   -1e15f};
  for (std::int64_t i = 0; i < elements; ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    const std::uint64_t pick = random_below(seed, 3 * index, 24);
    gradient[static_cast<std::size_t>(i)] =
        pick < std::size(special) ? special[pick]
                                  : static_cast<float>(1e-3 * random_normal(seed + 1, index));
  }
  return gradient;
}

// One call over the whole piece, one group.
inline void step(const Optimizer& optimizer, Piece& piece, const std::vector<float>& gradient,
                 const StepScalars& scalars, double decay = 0.01) {
  Pool pool(1);
  const GroupRange range{0, piece.elements(), 0};
  const Group group{1.0, decay};
  ASSERT_EQ(piece.elements(),
            optimizer.update(pool, piece.view(), gradient.data(), 0, piece.elements(), {&range, 1},
                             {&group, 1}, scalars));
}

inline StepScalars scalars_of(std::int64_t step, double lr = 1e-2) {
  StepScalars scalars;
  scalars.step = step;
  scalars.lr = lr;
  scalars.seed = 7;
  scalars.moments_are_zero = step == 1;
  return scalars;
}

}  // namespace zinf::optim
