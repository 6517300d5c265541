#include "engine/model/lm_head.h"

#include <ATen/Parallel.h>
#include "engine/model/aten.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/data/batch.h"
#include "engine/model/bf16_gradient.h"
#include "engine/model/softmax_row.h"
#include "engine/model/tape_gradient.h"

namespace zinf::model {
namespace {

constexpr std::int64_t kLogitBytes = std::int64_t{64} << 20;

// Calls use(first, rows, slice) for slices of the table in the stage's type.
template <typename Use>
void for_slices(const at::Tensor& table, at::ScalarType type, Use use) {
  const std::int64_t step = head_rows_per_slice(table.size(1));
  for (std::int64_t first = 0; first < table.size(0); first += step) {
    const std::int64_t rows = std::min(step, table.size(0) - first);
    use(first, rows, table.narrow(0, first, rows).to(type));
  }
}

// Positions that have a target, and what they should predict.
struct Selected {
  at::Tensor hidden;
  std::vector<std::int64_t> positions;
  std::vector<std::int32_t> targets;
  std::int64_t count() const { return static_cast<std::int64_t>(positions.size()); }
};

Selected select(const HeadInput& input) {
  Selected selected;
  const auto& targets = *input.targets;
  for (std::size_t position = 0; position < targets.size(); ++position) {
    if (targets[position] == data::kIgnore) continue;
    ZINF_CHECK(targets[position] >= 0 && targets[position] < input.vocabulary,
               str("target ", targets[position], " outside the vocabulary of ", input.vocabulary));
    selected.positions.push_back(static_cast<std::int64_t>(position));
    selected.targets.push_back(targets[position]);
  }
  selected.hidden = selected.positions.size() == targets.size()
                        ? input.hidden
                        : input.hidden.index_select(0, at::tensor(selected.positions, at::kLong));
  return selected;
}

// Chunks of the selected positions: calls use(first, count, hidden).
template <typename Use>
void for_chunks(const Selected& selected, std::int64_t vocabulary, Use use) {
  const std::int64_t step = head_positions_per_chunk(vocabulary);
  for (std::int64_t first = 0; first < selected.count(); first += step) {
    const std::int64_t count = std::min(step, selected.count() - first);
    use(first, count, selected.hidden.narrow(0, first, count));
  }
}

// In the stage's type, rows padded to whole cache lines.
at::Tensor logits_buffer(std::int64_t positions, std::int64_t columns, at::ScalarType type) {
  return at::empty({positions, (columns + 31) / 32 * 32}, type).narrow(1, 0, columns);
}

// A chunk of the selected positions, from `first` on, and a slice of the part's rows, from `row`
// on.
struct LogitsOfSlice {
  std::int64_t first, row;
  at::Tensor hidden, slice;
  std::int64_t rows() const { return slice.size(0); }
};

// Calls use(where, logits) for chunks of positions and, within them, slices of the part.
template <typename Use>
void for_logits(const HeadInput& part, const Selected& selected, Use use) {
  for_chunks(selected, part.vocabulary,
             [&](std::int64_t first, std::int64_t count, const at::Tensor& hidden) {
               for_slices(part.table, hidden.scalar_type(),
                          [&](std::int64_t row, std::int64_t rows, const at::Tensor& slice) {
                            at::Tensor logits = logits_buffer(count, rows, hidden.scalar_type());
                            at::mm_out(logits, hidden, slice.t());
                            use(LogitsOfSlice{first, row, hidden, slice}, logits);
                          });
             });
}

// work(position of the chunk, its row of logits in fp32), on all threads; where kChanges, what it
// leaves there is the row from then on.
template <bool kChanges, typename Work>
void for_rows(at::Tensor logits, Work work) {
  const std::int64_t columns = logits.size(1), stride = logits.stride(0);
  if (logits.scalar_type() == at::kFloat) {
    float* const values = logits.mutable_data_ptr<float>();
    at::parallel_for(0, logits.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) work(i, values + i * stride);
    });
    return;
  }
  // One row at a time is widened, in the core's own cache.
  const at::Tensor rows = at::empty({at::get_num_threads(), (columns + 15) / 16 * 16}, at::kFloat);
  float* const scratch = rows.mutable_data_ptr<float>();
  const Bf16Results bits = bf16_rows_to_write(logits);
  at::parallel_for(0, logits.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
    float* const values = scratch + at::get_thread_num() * rows.size(1);
    for (std::int64_t i = begin; i < end; ++i) {
      widen_row(bits.row(i), values, columns);
      work(i, values);
      if (kChanges) round_row(values, bits.row(i), columns);
    }
  });
}

// From the gradient of a slice's logits to those of the chunk's hidden states and the slice's rows.
void slice_gradients(const at::Tensor& logits, const at::Tensor& hidden, const at::Tensor& slice,
                     double scale, at::Tensor to_hidden, const Weight& table,
                     std::int64_t first_row) {
  const at::ScalarType type = hidden.scalar_type();
  const auto add_product = [&](at::Tensor to, const at::Tensor& a, const at::Tensor& b, bool keep) {
    if (type == at::kFloat) {
      at::addmm_out(to, to, a, b, keep ? 1 : 0, scale);
    } else {
      add_bf16(to, at::mm(a, b), keep, static_cast<float>(scale));
    }
  };
  add_product(to_hidden, logits, slice, true);
  if (!table.trainable) return;
  at::Tensor to_rows = table.gradient.narrow(0, first_row, slice.size(0));
  if (has_bf16_gradient(logits, hidden)) {
    add_bf16_gradient(to_rows, logits, hidden, !table.overwrite, static_cast<float>(scale));
  } else {
    add_product(to_rows, logits.t(), hidden, !table.overwrite);
  }
}

}  // namespace

std::int64_t head_positions_per_chunk(std::int64_t vocabulary) {
  return std::max<std::int64_t>(16, kLogitBytes / (4 * vocabulary));
}

std::int64_t count_targets(const std::vector<std::int32_t>& targets) {
  return static_cast<std::int64_t>(targets.size()) -
         std::count(targets.begin(), targets.end(), data::kIgnore);
}

void add_to_sums(const HeadInput& part, std::span<PositionSums> sums) {
  const Selected selected = select(part);
  for_logits(part, selected, [&](const LogitsOfSlice& at, const at::Tensor& logits) {
    for_rows<false>(logits, [&](std::int64_t i, const float* values) {
      PositionSums& sum = sums[selected.positions[at.first + i]];
      sum.exps.add(exp_sum(values, at.rows()));
      const std::int64_t target = selected.targets[at.first + i] - part.first_row - at.row;
      if (target >= 0 && target < at.rows()) sum.at_target = values[target];
    });
  });
}

double loss_from_sums(const std::vector<std::int32_t>& targets,
                      std::span<const PositionSums> sums) {
  double loss = 0;
  for (std::size_t position = 0; position < targets.size(); ++position) {
    if (targets[position] != data::kIgnore)
      loss += sums[position].exps.log() - static_cast<double>(sums[position].at_target);
  }
  return loss;
}

void part_gradients(const HeadInput& part, std::span<const PositionSums> sums, double scale,
                    at::Tensor to_selected, Weight& table_gradient) {
  const Selected selected = select(part);
  for_logits(part, selected, [&](const LogitsOfSlice& at, const at::Tensor& logits) {
    for_rows<true>(logits, [&](std::int64_t i, float* values) {
      softmax_part(values, at.rows(), sums[selected.positions[at.first + i]].exps);
      const std::int64_t target = selected.targets[at.first + i] - part.first_row - at.row;
      if (target >= 0 && target < at.rows()) values[target] -= 1;
    });
    slice_gradients(logits, at.hidden, at.slice, scale,
                    to_selected.narrow(0, at.first, at.hidden.size(0)), table_gradient, at.row);
    if (at.row + at.rows() == part.table.size(0)) table_gradient.overwrite = false;
  });
}

at::Tensor spread_selected(const at::Tensor& to_selected, const HeadInput& input) {
  const at::ScalarType type = input.hidden.scalar_type();
  if (to_selected.size(0) == input.hidden.size(0)) return to_selected.to(type);
  at::Tensor all = at::zeros({input.hidden.size(0), input.hidden.size(1)}, type);
  const Selected selected = select(input);
  all.index_copy_(0, at::tensor(selected.positions, at::kLong), to_selected.to(type));
  return all;
}

HeadLoss head_loss_and_gradients(const HeadInput& input, double scale, Weight& table_gradient) {
  const Selected selected = select(input);
  const std::int64_t part = head_rows_per_slice(input.hidden.size(1));
  at::Tensor to_selected = at::zeros({selected.count(), input.hidden.size(1)}, at::kFloat);
  std::vector<double> loss(static_cast<std::size_t>(selected.count()));
  for_chunks(selected, input.vocabulary,
             [&](std::int64_t first, std::int64_t count, const at::Tensor& hidden) {
               at::Tensor logits = logits_buffer(count, input.vocabulary, hidden.scalar_type());
               for_slices(input.table, hidden.scalar_type(),
                          [&](std::int64_t row, std::int64_t rows, const at::Tensor& slice) {
                            at::Tensor part_of = logits.narrow(1, row, rows);
                            at::mm_out(part_of, hidden, slice.t());
                          });
               for_rows<true>(logits, [&](std::int64_t i, float* values) {
                 const std::int32_t target = selected.targets[first + i];
                 const double at_target = values[target];
                 loss[first + i] = softmax_row(values, input.vocabulary, part).log() - at_target;
                 values[target] -= 1;
               });
               for_slices(input.table, hidden.scalar_type(),
                          [&](std::int64_t row, std::int64_t rows, const at::Tensor& slice) {
                            slice_gradients(logits.narrow(1, row, rows), hidden, slice, scale,
                                            to_selected.narrow(0, first, count), table_gradient,
                                            row);
                          });
               table_gradient.overwrite = false;
             });
  HeadLoss result;
  for (const double value : loss) result.loss_sum += value;
  result.to_hidden = spread_selected(to_selected, input);
  return result;
}

HeadLoss squared_error(const at::Tensor& predictions, const data::MicroBatch& batch, double scale,
                       bool gradients) {
  ZINF_CHECK(static_cast<std::int64_t>(batch.labels.size()) == predictions.size(0),
             str(batch.labels.size(), " labels for ", predictions.size(0), " samples"));
  const at::Tensor labels =
      at::from_blob(const_cast<float*>(batch.labels.data()), {predictions.size(0), 1}, at::kFloat);
  at::Tensor difference = predictions.to(at::kFloat).sub(labels);
  HeadLoss result;
  float* values = difference.data_ptr<float>();
  // A short last step is filled up with rows that nothing is learnt from.
  for (std::size_t row = 0; row < batch.targets.size(); ++row) {
    if (batch.targets[row] == data::kIgnore) values[row] = 0;
  }
  for (std::int64_t i = 0; i < difference.size(0); ++i)
    result.loss_sum += static_cast<double>(values[i]) * values[i];
  if (gradients) result.to_hidden = difference.mul(2 * scale).to(predictions.scalar_type());
  return result;
}

BestToken most_likely(const at::Tensor& hidden, const at::Tensor& table, std::int64_t first_row) {
  BestToken best;
  for_slices(table, hidden.scalar_type(),
             [&](std::int64_t row, std::int64_t rows, const at::Tensor& slice) {
               const at::Tensor logits = at::mm(hidden, slice.t()).to(at::kFloat);
               const float* values = logits.const_data_ptr<float>();
               const float* largest = std::max_element(values, values + rows);
               if (*largest > best.logit)
                 best = {*largest, static_cast<std::int32_t>(first_row + row + (largest - values))};
             });
  return best;
}

}  // namespace zinf::model
