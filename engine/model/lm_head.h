// Vocabulary head: logits, loss and gradients over chunks of positions and slices of the table, so
// that neither all logits nor a widened table ever exists.
//
// The table may be there as a whole, or in parts (rows [first_row, first_row + rows), whole slices
// but for the last): then add_to_sums() for all parts in order, loss_from_sums(), and
// part_gradients() for all parts in order do what head_loss_and_gradients() does, bit for bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "engine/data/batch.h"
#include "engine/model/compute.h"
#include "engine/model/softmax_row.h"
#include "engine/model/tape.h"

namespace zinf::model {

struct HeadInput {
  at::Tensor hidden;                         // [positions, width], in the stage's type
  at::Tensor table;                          // [rows, width], in the compute type
  const std::vector<std::int32_t>* targets;  // per position, data::kIgnore where there is none
  std::int64_t vocabulary = 0;               // rows of the whole table
  std::int64_t first_row = 0;                // of `table` in it
};

struct HeadLoss {
  double loss_sum = 0;   // over the positions with a target
  at::Tensor to_hidden;  // [positions, width]; zero where there is no target. Only with gradients.
};

// Loss and gradients of scale x loss_sum, the table being whole: to_hidden, and into table_gradient
// (when trainable). Softmax and sums in fp32; the gradient of the logits is softmax - onehot.
HeadLoss head_loss_and_gradients(const HeadInput& input, double scale, Weight& table_gradient);

// What the parts of the table so far add up to, per position. Plain bytes: it lives in a buffer.
struct PositionSums {
  ExpSum exps;
  float at_target = 0;
};
static_assert(sizeof(PositionSums) <= kPositionSumsBytes);
// Those without a target stay as they are.
void add_to_sums(const HeadInput& part, std::span<PositionSums> sums);
double loss_from_sums(const std::vector<std::int32_t>& targets, std::span<const PositionSums> sums);
// Adds the part's share to `to_selected` (fp32, [positions with a target, width], zero before the
// first part).
void part_gradients(const HeadInput& part, std::span<const PositionSums> sums, double scale,
                    at::Tensor to_selected, Weight& table_gradient);
// [positions, width] in the type of `hidden`.
at::Tensor spread_selected(const at::Tensor& to_selected, const HeadInput& input);
std::int64_t count_targets(const std::vector<std::int32_t>& targets);

// Regression: predictions [rows, 1] against labels. Loss and gradient of scale x sum of squared
// differences.
HeadLoss squared_error(const at::Tensor& predictions, const data::MicroBatch& batch, double scale,
                       bool gradients);

// The largest logit and its id; ties go to the lowest id. hidden: [1, width].
struct BestToken {
  float logit = -std::numeric_limits<float>::infinity();
  std::int32_t id = 0;
};
BestToken most_likely(const at::Tensor& hidden, const at::Tensor& table, std::int64_t first_row);

// Positions whose logits are held at once.
std::int64_t head_positions_per_chunk(std::int64_t vocabulary);

}  // namespace zinf::model
