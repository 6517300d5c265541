// A micro-batch as attention sees it: contiguous runs of one document.
#pragma once

#include <vector>

#include "engine/data/batch.h"
#include "engine/model/model_spec.h"

namespace zinf::model {

struct Segment {
  int row = 0;
  int start = 0;  // within the row
  int length = 0;
};

struct BatchView {
  const data::MicroBatch* batch = nullptr;
  int rows = 0;
  int length = 0;
  std::vector<Segment> segments;  // padding belongs to none
  bool whole_rows = false;        // every row is one document without padding
  DropoutRates dropout;           // zero where nothing is dropped: evaluation
  std::uint64_t dropout_key = 0;  // of the step and micro-batch: dropout.h
  std::int64_t positions() const { return static_cast<std::int64_t>(rows) * length; }
};

// Error(kFailed) when arrays and shape disagree.
BatchView view_batch(const data::MicroBatch& batch);

}  // namespace zinf::model
