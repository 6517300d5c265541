#include "engine/model/bf16_gradient.h"

#include "engine/model/aten.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/model/gradient_tiles.h"
#include "engine/model/tape_gradient.h"
#include "engine/model/torch_runtime.h"

namespace zinf::model {
bool has_bf16_gradient(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == at::kBFloat16 && b.size(1) % 16 == 0 && a.stride(1) == 1 &&
         b.stride(1) == 1 && uses_bf16_dot_products();
}

void add_bf16_gradient(at::Tensor sums, const at::Tensor& a, const at::Tensor& b, bool keep,
                       float scale) {
  ZINF_CHECK(a.size(0) > 0 && a.size(0) == b.size(0) && sums.size(0) == a.size(1) &&
                 sums.size(1) == b.size(1) && sums.stride(1) == 1,
             str("gradient ", sums.size(0), " x ", sums.size(1), " of ", a.size(0), " x ",
                 a.size(1), " and ", b.size(0), " x ", b.size(1)));
  const Bf16Rows a_rows = bf16_rows(a), b_rows = bf16_rows(b);
  at::Tensor left, right;
  for (std::int64_t first = 0; first < a.size(0); first += GradientProduct::kPositions) {
    GradientProduct product;
    product.a = {a_rows.row(first), a_rows.stride};
    product.b = {b_rows.row(first), b_rows.stride};
    product.positions = std::min(GradientProduct::kPositions, a.size(0) - first);
    product.rows = a.size(1);
    product.columns = b.size(1);
    product.sums = {sums.mutable_data_ptr<float>(), sums.stride(0)};
    product.keep = keep || first > 0;
    product.scale = scale;
    if (first == 0) {
      left = at::empty({2 * product.left_elements()}, at::kByte);
      right = at::empty({4 * product.right_words()}, at::kByte);
    }
    auto* const a_packed = reinterpret_cast<std::uint16_t*>(left.mutable_data_ptr<std::uint8_t>());
    auto* const b_packed = reinterpret_cast<std::uint32_t*>(right.mutable_data_ptr<std::uint8_t>());
    const std::int64_t rows = product.row_parts(), columns = product.column_parts();
    at::parallel_for(0, rows + columns, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        if (i < rows) {
          product.pack_left(i, a_packed);
        } else {
          product.pack_right(i - rows, b_packed);
        }
      }
    });
    at::parallel_for(0, rows * columns, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        product.multiply(i / columns, i % columns, a_packed, b_packed);
    });
  }
}

}  // namespace zinf::model
