// The fp32 masters of a piece in the twin's memory: how the first weights are stored, and read
// back.
#pragma once

#include <cstring>
#include <vector>

#include "cpu_optim/convert.h"
#include "cpu_optim/state_schema.h"
#include "tests/step/half.h"

namespace zinf::testing {

using PieceStates = std::vector<std::vector<std::byte>>;  // in the order of the schema

inline void store_master(model::DType type, const optim::Format& format, PieceStates& states,
                         const float* master, std::int64_t n) {
  if (format.weight == optim::WeightDtype::kFp32) {
    std::memcpy(states[0].data(), master, static_cast<std::size_t>(n) * 4);
    return;
  }
  std::vector<std::int16_t> remainder(static_cast<std::size_t>(n));
  optim::split_master(master, reinterpret_cast<std::uint16_t*>(states[0].data()), remainder.data(),
                      n);
  if (type == model::DType::kFloat16) to_stored(type, master, states[0].data(), n);
  if (states.size() == 1) return;
  if (format.master == optim::MasterWeights::kSplit) {
    std::memcpy(states[1].data(), remainder.data(), remainder.size() * 2);
  } else if (format.master == optim::MasterWeights::kFp32) {
    std::memcpy(states[1].data(), master, static_cast<std::size_t>(n) * 4);
  }
}

// Elements [first, first + count).
inline std::vector<float> load_master(model::DType type, const optim::Format& format,
                                      const PieceStates& states, std::int64_t first,
                                      std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  const std::byte* weight = states[0].data() + static_cast<Bytes>(first) * size_of(type);
  if (format.weight == optim::WeightDtype::kFp32) {
    std::memcpy(values.data(), weight, values.size() * 4);
  } else if (states.size() > 1 && format.master == optim::MasterWeights::kFp32) {
    std::memcpy(values.data(), states[1].data() + first * 4, values.size() * 4);
  } else if (states.size() > 1 && format.master == optim::MasterWeights::kSplit) {
    optim::join_master(reinterpret_cast<const std::uint16_t*>(weight),
                       reinterpret_cast<const std::int16_t*>(states[1].data() + first * 2),
                       values.data(), count);
  } else {
    from_stored(type, weight, values.data(), count);
  }
  return values;
}

}  // namespace zinf::testing
