// Matrices of bf16, as their bits, that kernels are given.
#pragma once

#include <cstdint>

namespace zinf::model {

template <typename T>
struct MatrixRows {
  T* data = nullptr;
  std::int64_t stride = 0;  // of rows, in elements
  [[gnu::always_inline]] T* row(std::int64_t number) const { return data + number * stride; }
};
using Bf16Rows = MatrixRows<const std::uint16_t>;
using Bf16Results = MatrixRows<std::uint16_t>;
using FloatRows = MatrixRows<const float>;
using FloatResults = MatrixRows<float>;

}  // namespace zinf::model
