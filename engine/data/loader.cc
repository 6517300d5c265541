#include "engine/data/loader.h"

#include <algorithm>
#include <cmath>

#include "engine/base/error.h"
#include "engine/base/random.h"
#include "engine/base/str.h"
#include "engine/data/permutation.h"

namespace zinf::data {
namespace {

// What a random stream is for (third word of its key).
constexpr std::uint64_t kRowOrder = 0x726f77;
constexpr std::uint64_t kStepOrder = 0x73746570;
// Steps whose rows are sorted together under group_by_length.
constexpr std::int64_t kGroupedSteps = 16;

}  // namespace

Loader::Loader(std::shared_ptr<const RowSource> source, const LoaderOptions& options)
    : source_(std::move(source)), options_(options) {
  ZINF_CHECK(options.micro_batch > 0 && options.accumulation > 0 && options.world > 0 &&
                 options.rank >= 0 && options.rank < options.world,
             str("micro-batch ", options.micro_batch, ", accumulation ", options.accumulation,
                 ", rank ", options.rank, " of ", options.world));
  rows_per_step_ = std::int64_t{options.micro_batch} * options.accumulation * options.world;
  if (source_->rows() == 0) {
    const std::vector<SourceIdentity> files = source_->identity();
    throw Error(
        ErrorKind::kUsage,
        str("the data has no row to train on",
            files.empty() ? "" : " (" + files[0].path + (files.size() > 1 ? ", ...)" : ")")),
        "a row takes at least two tokens of one document, one of them to be learnt; of "
        "conversations the assistant's turns are");
  }
}

std::int64_t Loader::steps_per_epoch() const {
  if (source_->rows() == RowSource::kEndless) return 0;
  return (source_->rows() + rows_per_step_ - 1) / rows_per_step_;
}

std::int64_t Loader::total_steps(double epochs) const {
  if (source_->rows() == RowSource::kEndless) {
    throw Error(ErrorKind::kUsage,
                "train.epochs needs data that ends; this data is generated without end",
                "set train.steps");
  }
  const double steps = epochs * static_cast<double>(steps_per_epoch());
  // 0.1 x 30 must be 3 steps, not 4: forgive the rounding of the factor.
  return static_cast<std::int64_t>(std::ceil(steps - 1e-9 * steps));
}

Position Loader::position(std::int64_t step) const {
  const std::int64_t per_epoch = steps_per_epoch();
  if (per_epoch == 0) return {0, step, step * rows_per_step_};
  return {step / per_epoch, step % per_epoch, step % per_epoch * rows_per_step_};
}

std::vector<std::int64_t> Loader::step_rows(std::int64_t step) const {
  ZINF_CHECK(step >= 0, str("step ", step));
  const Position at = position(step);
  if (options_.group_by_length && options_.shuffle && steps_per_epoch() != 0)
    return grouped_rows(at.epoch, at.step);
  const std::int64_t total = source_->rows();
  const std::int64_t count =
      total == RowSource::kEndless ? rows_per_step_ : std::min(rows_per_step_, total - at.row);
  std::vector<std::int64_t> rows(count);
  const bool shuffle = options_.shuffle && total != RowSource::kEndless;
  const Permutation order(shuffle ? total : 1, random_key(options_.seed, kRowOrder, at.epoch));
  for (std::int64_t i = 0; i < count; ++i) rows[i] = shuffle ? order(at.row + i) : at.row + i;
  return rows;
}

// Rows of 16 consecutive steps of the shuffled order, sorted by length and dealt to the steps
// again; which step gets which lengths is random, except that an incomplete step stays the last.
std::vector<std::int64_t> Loader::grouped_rows(std::int64_t epoch, std::int64_t step) const {
  const std::int64_t block = step / kGroupedSteps;
  const std::int64_t begin = block * kGroupedSteps * rows_per_step_;
  const std::int64_t end = std::min(source_->rows(), begin + kGroupedSteps * rows_per_step_);
  const Permutation order(source_->rows(), random_key(options_.seed, kRowOrder, epoch));
  std::vector<std::int64_t> rows(end - begin);
  for (std::int64_t i = begin; i < end; ++i) rows[i - begin] = order(i);
  std::stable_sort(rows.begin(), rows.end(), [&](std::int64_t a, std::int64_t b) {
    return source_->padded_length(a) > source_->padded_length(b);
  });
  const std::int64_t whole = (end - begin) / rows_per_step_;
  const std::int64_t in_block = step % kGroupedSteps;
  std::int64_t part = in_block;
  if (in_block < whole)
    part = Permutation(whole, random_key(options_.seed, kStepOrder, epoch, block))(in_block);
  const std::int64_t first = part * rows_per_step_;
  const std::int64_t last = std::min<std::int64_t>(first + rows_per_step_, rows.size());
  return {rows.begin() + first, rows.begin() + last};
}

int Loader::length_of(const std::vector<std::int64_t>& rows, std::int64_t begin) const {
  const std::int64_t end = std::min<std::int64_t>(begin + options_.micro_batch, rows.size());
  int length = 0;
  for (std::int64_t i = begin; i < end; ++i)
    length = std::max(length, source_->padded_length(rows[i]));
  return length != 0
             ? length
             : source_->padded_lengths().front();  // nothing but padding: the smallest shape
}

MicroBatch Loader::micro_batch(const std::vector<std::int64_t>& rows, std::int64_t begin) const {
  MicroBatch batch;
  batch.rows = options_.micro_batch;
  batch.length = length_of(rows, begin);
  const std::size_t positions = static_cast<std::size_t>(batch.rows) * batch.length;
  batch.targets.assign(positions, kIgnore);
  if (const int width = source_->feature_width(); width > 0) {
    batch.features.assign(static_cast<std::size_t>(batch.rows) * width, 0.0f);
    batch.labels.assign(batch.rows, 0.0f);
  } else {
    batch.ids.assign(positions, 0);
    batch.positions.assign(positions, 0);
    batch.documents.assign(positions, -1);
  }
  const std::int64_t end = std::min<std::int64_t>(begin + options_.micro_batch, rows.size());
  for (std::int64_t i = begin; i < end; ++i) {
    source_->fill(rows[i], batch, static_cast<int>(i - begin));
    batch.tokens += source_->tokens(rows[i]);
  }
  batch.target_tokens = std::count_if(batch.targets.begin(), batch.targets.end(),
                                      [](std::int32_t target) { return target != kIgnore; });
  return batch;
}

StepBatch Loader::step_batch(std::int64_t step) const {
  const std::vector<std::int64_t> rows = step_rows(step);
  const std::int64_t rows_per_round = std::int64_t{options_.micro_batch} * options_.world;
  const std::int64_t rounds =
      (static_cast<std::int64_t>(rows.size()) + rows_per_round - 1) / rows_per_round;
  StepBatch batch;
  double positions = 0;
  for (std::int64_t global = 0; global < rounds * options_.world; ++global) {
    const std::int64_t begin = global * options_.micro_batch;
    positions += static_cast<double>(options_.micro_batch) * length_of(rows, begin);
    if (global % options_.world == options_.rank)
      batch.micro_batches.push_back(micro_batch(rows, begin));
  }
  for (const std::int64_t row : rows) {
    batch.tokens += source_->tokens(row);
    batch.target_tokens += source_->targets(row);
  }
  batch.padding = 1.0 - static_cast<double>(batch.tokens) / positions;
  if (batch.target_tokens == 0) {
    throw Error(ErrorKind::kUsage,
                str("step ", step + 1, ": none of its ", batch.tokens,
                    " tokens is a target, so there is no loss"),
                "check the data's masks (data.train_on_prompt), or use larger batches");
  }
  return batch;
}

std::vector<ShapeClass> Loader::shape_classes() const {
  std::vector<ShapeClass> classes;
  for (const int length : source_->padded_lengths())
    classes.push_back({options_.micro_batch, length});
  std::reverse(classes.begin(), classes.end());
  return classes;
}

}  // namespace zinf::data
