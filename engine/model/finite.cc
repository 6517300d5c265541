#include "engine/model/finite.h"

#include <cstring>

namespace zinf::model {

namespace {

// An exponent of all ones is that of infinity and NaN.
template <typename Bits>
bool all_below(const std::byte* values, std::int64_t elements, Bits exponent) {
  for (std::int64_t i = 0; i < elements; ++i) {
    Bits value;
    std::memcpy(&value, values + static_cast<std::size_t>(i) * sizeof value, sizeof value);
    if ((value & exponent) == exponent) return false;
  }
  return true;
}

}  // namespace

bool all_finite(const std::byte* values, DType type, std::int64_t elements) {
  switch (type) {
    case DType::kFloat32:
      return all_below<std::uint32_t>(values, elements, 0x7F800000);
    case DType::kBFloat16:
      return all_below<std::uint16_t>(values, elements, 0x7F80);
    case DType::kFloat16:
      return all_below<std::uint16_t>(values, elements, 0x7C00);
  }
  return true;
}

}  // namespace zinf::model
