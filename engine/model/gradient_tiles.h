// sums += scale a^T b of bf16 matrices a [positions, rows] and b [positions, columns], by the
// processor's bf16 dot products (AVX512-BF16): what a micro-batch adds to a weight's gradient, in
// fp32 throughout. In three steps, each in parts that threads may take. Private to
// bf16_gradient.cc, which asks first whether the processor has the instructions.
#pragma once

#include <cstdint>

#include "engine/model/bf16_rows.h"

namespace zinf::model {

struct GradientProduct {
  // Positions are taken so many at a time, one call of the three steps for each.
  static constexpr std::int64_t kPositions = 256;
  // Rows and columns that one part of a step has.
  static constexpr std::int64_t kRows = 96, kColumns = 64;

  Bf16Rows a, b;
  std::int64_t positions = 0, rows = 0, columns = 0;  // positions: at most kPositions
  FloatResults sums;
  bool keep = true;  // else = instead of +=
  float scale = 1;

  // Elements of the packed matrices.
  std::int64_t left_elements() const;
  std::int64_t right_words() const;
  std::int64_t row_parts() const;
  std::int64_t column_parts() const;

  void pack_left(std::int64_t row_part, std::uint16_t* left) const;
  void pack_right(std::int64_t column_part, std::uint32_t* right) const;
  // From both packed matrices, which are whole.
  void multiply(std::int64_t row_part, std::int64_t column_part, const std::uint16_t* left,
                const std::uint32_t* right) const;

 private:
  std::int64_t left_stride() const;
  std::int64_t pairs() const;
};

}  // namespace zinf::model
