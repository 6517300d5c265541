// From rows to the batches of optimizer steps: a pure function of (seed, step, rank, world).
//
// An epoch visits every row once, in an order drawn from (seed, epoch). A step takes the next
// micro_batch x accumulation x world rows, whatever their split, so every split trains on the same
// rows; row i of a step lies in global micro-batch g = i / micro_batch, which rank g % world
// computes as its number g / world. The last step of an epoch takes what is left: it has fewer
// micro-batches (the same number on every rank), their missing rows are padding without targets,
// and nothing is carried into the next epoch.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/data/batch.h"
#include "engine/data/row_source.h"

namespace zinf::data {

struct LoaderOptions {
  int micro_batch = 1;   // rows per micro-batch
  int accumulation = 1;  // micro-batches per rank and step
  int rank = 0;
  int world = 1;
  std::uint64_t seed = 0;
  bool shuffle = true;
  // Rows of similar length come together, so that less is padded (the order stays random beyond 16
  // steps).
  bool group_by_length = false;
};

struct ShapeClass {
  int rows = 0;
  int length = 0;
  bool operator==(const ShapeClass&) const = default;
};

struct Position {
  std::int64_t epoch = 0;
  std::int64_t step = 0;  // within the epoch
  std::int64_t row = 0;   // rows of the epoch before this step
};

class Loader {
 public:
  // Error(kUsage): no row at all.
  Loader(std::shared_ptr<const RowSource> source, const LoaderOptions& options);

  // step counts from 0. tokens, target_tokens and padding of the result are over all ranks. A step
  // without any target: Error(kUsage). Thread-safe.
  StepBatch step_batch(std::int64_t step) const;
  // The rows of a step over all ranks, in order.
  std::vector<std::int64_t> step_rows(std::int64_t step) const;

  std::int64_t steps_per_epoch() const;           // 0: endless
  std::int64_t total_steps(double epochs) const;  // rounded up; endless: Error(kUsage)
  Position position(std::int64_t step) const;
  // Every shape that a micro-batch can have, the largest first.
  std::vector<ShapeClass> shape_classes() const;
  const RowSource& source() const { return *source_; }
  const LoaderOptions& options() const { return options_; }

 private:
  std::vector<std::int64_t> grouped_rows(std::int64_t epoch, std::int64_t step) const;
  MicroBatch micro_batch(const std::vector<std::int64_t>& rows, std::int64_t begin) const;
  int length_of(const std::vector<std::int64_t>& rows, std::int64_t begin) const;

  std::shared_ptr<const RowSource> source_;
  LoaderOptions options_;
  std::int64_t rows_per_step_;
};

}  // namespace zinf::data
