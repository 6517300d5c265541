// Values in a compute type, for the fake compute and the twin.
#pragma once

#include <cstring>

#include "cpu_optim/convert.h"
#include "engine/model/model_spec.h"

namespace zinf::testing {

inline void to_stored(model::DType type, const float* from, std::byte* to, std::int64_t elements) {
  if (type == model::DType::kFloat32) {
    std::memcpy(to, from, static_cast<std::size_t>(elements) * sizeof(float));
  } else {
    (type == model::DType::kFloat16 ? optim::fp32_to_fp16 : optim::fp32_to_bf16)(
        from, reinterpret_cast<std::uint16_t*>(to), elements, optim::best_isa());
  }
}

inline void from_stored(model::DType type, const std::byte* from, float* to,
                        std::int64_t elements) {
  if (type == model::DType::kFloat32) {
    std::memcpy(to, from, static_cast<std::size_t>(elements) * sizeof(float));
  } else {
    (type == model::DType::kFloat16 ? optim::fp16_to_fp32 : optim::bf16_to_fp32)(
        reinterpret_cast<const std::uint16_t*>(from), to, elements, optim::best_isa());
  }
}

}  // namespace zinf::testing
