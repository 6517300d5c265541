#include "cpu_optim/state_schema.h"

#include <array>
#include <string>

#include "engine/base/error.h"

namespace zinf::optim {

namespace {

constexpr Bytes kScaleBytes = sizeof(float);

Bytes weight_bytes(WeightDtype weight) { return weight == WeightDtype::kFp32 ? 4 : 2; }

Bytes moment_quantum_bytes(StateDtype dtype) {
  switch (dtype) {
    case StateDtype::kFp32:
      return kQuantum * 4;
    case StateDtype::kBf16:
      return kQuantum * 2;
    case StateDtype::kInt8:
      return kQuantum + kScaleBytes;
  }
  return 0;
}

// The enumerators' names, in order.
constexpr std::array<std::string_view, 5> kAlgorithms = {"adamw", "adam", "lion", "adagrad", "sgd"};
constexpr std::array<std::string_view, 3> kStateDtypes = {"fp32", "bf16", "int8"};
constexpr std::array<std::string_view, 3> kMasters = {"fp32", "split", "bf16-sr"};
constexpr std::array<std::string_view, 3> kWeights = {"fp32", "bf16", "fp16"};

template <typename Enum, std::size_t kCount>
std::optional<Enum> find(const std::array<std::string_view, kCount>& names, std::string_view text) {
  for (std::size_t i = 0; i < kCount; ++i) {
    if (names[i] == text) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

}  // namespace

Bytes StateSpec::bytes(std::int64_t elements) const {
  ZINF_CHECK(elements >= 0, "negative number of elements");
  const Bytes whole = static_cast<Bytes>(elements) / kQuantum;
  const Bytes rest = static_cast<Bytes>(elements) % kQuantum;
  if (rest == 0) return whole * quantum_bytes;
  // A quantum with a scale is never cut.
  if (quantum_bytes % kQuantum != 0) return (whole + 1) * quantum_bytes;
  return whole * quantum_bytes + rest * (quantum_bytes / kQuantum);
}

std::string_view why_invalid(const Format& format) {
  if (format.weight == WeightDtype::kFp32 && format.master != MasterWeights::kFp32) {
    return "weights in fp32 are their own master: master_weights must be fp32";
  }
  if (format.weight == WeightDtype::kFp16 && format.master != MasterWeights::kFp32) {
    return "weights in fp16 need master_weights: fp32";
  }
  return "";
}

std::vector<StateSpec> schema(const Format& format) {
  ZINF_CHECK(why_invalid(format).empty(), std::string(why_invalid(format)));
  std::vector<StateSpec> states = {{"weight", kQuantum * weight_bytes(format.weight), true, false}};
  if (format.weight != WeightDtype::kFp32) {
    if (format.master == MasterWeights::kFp32)
      states.push_back({"master", kQuantum * 4, true, false});
    if (format.master == MasterWeights::kSplit)
      states.push_back({"remainder", kQuantum * 2, true, false});
  }
  const auto add_moment = [&](std::string_view name) {
    states.push_back({name, moment_quantum_bytes(format.moments), true, true});
  };
  switch (format.algorithm) {
    case Algorithm::kAdamW:
    case Algorithm::kAdam:
      add_moment("exp_avg");
      add_moment("exp_avg_sq");
      break;
    case Algorithm::kLion:
      add_moment("exp_avg");
      break;
    case Algorithm::kAdagrad:
      add_moment("sum");
      break;
    case Algorithm::kSgd:
      if (format.has_momentum) add_moment("momentum_buffer");
      break;
  }
  return states;
}

std::vector<StateSpec> frozen_schema(WeightDtype weight) {
  return {{"weight", kQuantum * weight_bytes(weight), false, false}};
}

double bytes_per_element(const std::vector<StateSpec>& states) {
  Bytes sum = 0;
  for (const StateSpec& state : states) sum += state.quantum_bytes;
  return static_cast<double>(sum) / kQuantum;
}

std::string_view name(Algorithm value) { return kAlgorithms[static_cast<std::size_t>(value)]; }
std::string_view name(StateDtype value) { return kStateDtypes[static_cast<std::size_t>(value)]; }
std::string_view name(MasterWeights value) { return kMasters[static_cast<std::size_t>(value)]; }
std::string_view name(WeightDtype value) { return kWeights[static_cast<std::size_t>(value)]; }
std::optional<Algorithm> parse_algorithm(std::string_view text) {
  return find<Algorithm>(kAlgorithms, text);
}
std::optional<StateDtype> parse_state_dtype(std::string_view text) {
  return find<StateDtype>(kStateDtypes, text);
}
std::optional<MasterWeights> parse_master_weights(std::string_view text) {
  return find<MasterWeights>(kMasters, text);
}
std::optional<WeightDtype> parse_weight_dtype(std::string_view text) {
  return find<WeightDtype>(kWeights, text);
}

}  // namespace zinf::optim
