// Whether values are finite, by their bits, so that no compiler option matters.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/model/model_spec.h"

namespace zinf::model {

bool all_finite(const std::byte* values, DType type, std::int64_t elements);

}  // namespace zinf::model
