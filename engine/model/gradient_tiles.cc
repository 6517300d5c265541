// Compiled for AVX512-BF16: see bf16_dot.h.
#include "engine/model/gradient_tiles.h"

#include "engine/model/bf16_dot.h"

namespace zinf::model {

static_assert(GradientProduct::kColumns == kPanel && GradientProduct::kRows % kTileRows == 0 &&
              GradientProduct::kRows % kLanes == 0);

// Whole blocks of a transposition, and a little more: rows at a power of two meet in the cache.
std::int64_t GradientProduct::left_stride() const { return padded(positions, 32) + 32; }

std::int64_t GradientProduct::pairs() const { return (positions + 1) / 2; }
std::int64_t GradientProduct::row_parts() const { return (rows + kRows - 1) / kRows; }
std::int64_t GradientProduct::column_parts() const { return (columns + kPanel - 1) / kPanel; }

std::int64_t GradientProduct::left_elements() const { return padded(rows, kLanes) * left_stride(); }

std::int64_t GradientProduct::right_words() const { return column_parts() * kPanel * pairs(); }

void GradientProduct::pack_left(std::int64_t row_part, std::uint16_t* left) const {
  const std::int64_t first = row_part * kRows;
  transpose_rows({a.data + first, a.stride}, positions, least(kRows, rows - first),
                 left + first * left_stride(), left_stride());
}

void GradientProduct::pack_right(std::int64_t column_part, std::uint32_t* right) const {
  const std::int64_t first = column_part * kPanel;
  const std::int64_t width = least(kPanel, columns - first);
  pack_rows({b.data + first, b.stride}, 0, positions, width, right + first * pairs(), width,
            pairs());
}

void GradientProduct::multiply(std::int64_t row_part, std::int64_t column_part,
                               const std::uint16_t* left, const std::uint32_t* right) const {
  const std::int64_t first = row_part * kRows, column = column_part * kPanel;
  const Left rows_of_a = {left + first * left_stride(), left_stride(), least(kRows, rows - first)};
  const std::int64_t width = least(kPanel, columns - column);
  const Right panel = {right + column * pairs(), width, width};
  const FloatResults to = {sums.row(first) + column, sums.stride};
  if (keep) {
    product<true>(rows_of_a, panel, pairs(), to, scale);
  } else {
    product<false>(rows_of_a, panel, pairs(), to, scale);
  }
}

}  // namespace zinf::model
