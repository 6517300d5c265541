// Which states a trained piece has, in which order and how many bytes they take: the one place that
// knows the layouts that the update reads and writes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/base/layout.h"

namespace zinf::optim {

using zinf::kQuantum;
using zinf::kTile;

enum class Algorithm { kAdamW, kAdam, kLion, kAdagrad, kSgd };
enum class StateDtype { kFp32, kBf16, kInt8 };        // of the moments
enum class MasterWeights { kFp32, kSplit, kBf16Sr };  // where the exact weight lives
enum class WeightDtype { kFp32, kBf16, kFp16 };       // what the model computes with

// What of the configuration decides the states. fp32 weights are their own master (master = kFp32,
// no extra state). bf16 weights take any master. fp16 weights take kFp32.
struct Format {
  Algorithm algorithm = Algorithm::kAdamW;
  WeightDtype weight = WeightDtype::kFp32;
  MasterWeights master = MasterWeights::kFp32;
  StateDtype moments = StateDtype::kFp32;
  bool has_momentum = true;  // SGD only: momentum != 0

  bool operator==(const Format&) const = default;
};

// One state of a piece. Element 256 k starts at byte k * quantum_bytes, in every state.
//   "weight"           fp32, bf16 or fp16
//   "master"           fp32
//   "remainder"        int16: bits of the master - (weight << 16)
//   "exp_avg"          Adam, Lion: first moment
//   "exp_avg_sq"       Adam: second moment
//   "sum"              Adagrad: sum of squares
//   "momentum_buffer"  SGD
// A moment in int8 is, per quantum, 256 codes and then 4 bytes of scale: 260 bytes (kernel_int8.h
// has the codes and their error).
struct StateSpec {
  std::string_view name;
  Bytes quantum_bytes = 0;
  bool is_mutable = true;
  bool is_moment = false;

  // Bytes of the first `elements` elements.
  Bytes bytes(std::int64_t elements) const;
};

constexpr int kMaxStates = 4;

// The states of a trained piece; the weight is the first. Throws nothing; a format that
// why_invalid() refuses is a failed check.
std::vector<StateSpec> schema(const Format& format);
// The states of a frozen piece: the weight, not mutable.
std::vector<StateSpec> frozen_schema(WeightDtype weight);
// Sum over the states, for plans: 12 for bf16 weights with a remainder and fp32 moments.
double bytes_per_element(const std::vector<StateSpec>& states);

// Empty, or the reason why there is no such format ("master_weights: split needs bf16 weights").
std::string_view why_invalid(const Format& format);

// Names as in the configuration: "adamw", "int8", "bf16-sr", ... nullopt: no such name.
std::string_view name(Algorithm value);
std::string_view name(StateDtype value);
std::string_view name(MasterWeights value);
std::string_view name(WeightDtype value);
std::optional<Algorithm> parse_algorithm(std::string_view text);
std::optional<StateDtype> parse_state_dtype(std::string_view text);
std::optional<MasterWeights> parse_master_weights(std::string_view text);
std::optional<WeightDtype> parse_weight_dtype(std::string_view text);

}  // namespace zinf::optim
