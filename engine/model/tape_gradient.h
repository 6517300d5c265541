// What the tape's operations and the kernels beneath them share. Private to this room.
#pragma once

#include "engine/model/aten.h"

#include <cstdint>
#include <utility>

#include "engine/base/error.h"
#include "engine/model/bf16_kernels.h"
#include "engine/model/bf16_rows.h"
#include "engine/model/tape.h"

namespace zinf::model {

// A bf16 matrix whose rows are dense, as the bits that kernels work on.
inline Bf16Rows bf16_rows(const at::Tensor& matrix) {
  ZINF_CHECK(matrix.scalar_type() == at::kBFloat16 && matrix.stride(1) == 1, "dense rows of bf16");
  return {reinterpret_cast<const std::uint16_t*>(matrix.const_data_ptr<c10::BFloat16>()),
          matrix.stride(0)};
}
inline Bf16Results bf16_rows_to_write(at::Tensor& matrix) {
  const Bf16Rows rows = bf16_rows(matrix);
  return {const_cast<std::uint16_t*>(rows.data), rows.stride};
}

// Contiguous bf16 as the bits that bf16_kernels.h works on.
inline const std::uint16_t* bf16_bits(const at::Tensor& tensor) {
  ZINF_CHECK(tensor.scalar_type() == at::kBFloat16 && tensor.is_contiguous(), "contiguous bf16");
  return reinterpret_cast<const std::uint16_t*>(tensor.const_data_ptr<c10::BFloat16>());
}
inline std::uint16_t* bf16_bits_to_write(at::Tensor& tensor) {
  return const_cast<std::uint16_t*>(bf16_bits(tensor));
}

// fp32 += bf16 x scale, or = where not `keep`. `to` is contiguous.
inline void add_bf16(const at::Tensor& to, const at::Tensor& from, bool keep, float scale = 1) {
  ZINF_CHECK(to.is_contiguous() && to.numel() == from.numel(), "contiguous, of the same size");
  accumulate(to.mutable_data_ptr<float>(), bf16_bits(from), to.numel(), keep, scale);
}

// Takes the gradient that has arrived at a node; undefined when nothing below the loss used it.
inline at::Tensor take_gradient(Tape::Node& node) {
  return std::exchange(node.gradient, at::Tensor());
}

// In place is allowed only where nobody else looks at the memory.
inline bool is_exclusive(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

inline void add_to_node(Tape::Node& node, const at::Tensor& gradient) {
  if (!node.wants_gradient) return;
  if (!node.gradient.defined()) {
    node.gradient = gradient;
  } else if (is_exclusive(node.gradient)) {
    node.gradient.add_(gradient);
  } else {
    node.gradient = at::add(node.gradient, gradient);
  }
}

// The same with the product a x b, accumulated by the matrix kernel where possible.
inline void add_product_to_node(Tape::Node& node, const at::Tensor& a, const at::Tensor& b) {
  if (!node.wants_gradient) return;
  if (node.gradient.defined() && is_exclusive(node.gradient)) {
    node.gradient.addmm_(a, b);
  } else {
    add_to_node(node, at::mm(a, b));
  }
}

}  // namespace zinf::model
