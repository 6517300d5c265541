// One row's softmax, vectorised for the processor at hand. LibTorch's own makes several passes over
// memory. A row may come in parts, one after the other: results do not depend on whether all parts
// are there at once.
#pragma once

#include <cstdint>
#include <limits>

namespace zinf::model {

// sum of exp(x - largest) over a part of a row; parts are added in order.
struct ExpSum {
  float largest = -std::numeric_limits<float>::infinity();
  double sum = 0;

  void add(const ExpSum& part);
  double log() const;  // log(sum(exp(row)))
};

ExpSum exp_sum(const float* part, std::int64_t count);

// Replaces a part of a row whose sum is `row` by its share of the row's softmax.
void softmax_part(float* part, std::int64_t count, const ExpSum& row);

// Replaces the row by its softmax, in parts of `part` elements (the last may be shorter), and
// returns the row's sum.
ExpSum softmax_row(float* row, std::int64_t count, std::int64_t part);

}  // namespace zinf::model
