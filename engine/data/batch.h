// One optimizer step's input, as plain data: what the data room makes and the model room reads.
#pragma once

#include <cstdint>
#include <vector>

namespace zinf::data {

// Target value of a position that nothing is learnt from.
constexpr std::int32_t kIgnore = -100;

// rows x length positions, row-major. Language models fill ids .. documents; regression fills
// features and labels (then length is 1 and a row is a sample).
struct MicroBatch {
  int rows = 0;
  int length = 0;
  std::vector<std::int32_t> ids;        // padding: any valid id, document -1, target kIgnore
  std::vector<std::int32_t> targets;    // already shifted: the id to predict here, or kIgnore
  std::vector<std::int32_t> positions;  // position within its document (0-based)
  std::vector<std::int32_t>
      documents;                   // number within the row, -1: padding; attention stays inside
  std::vector<float> features;     // rows x feature width
  std::vector<float> labels;       // rows; row r counts if targets[r] is 0, else it is padding
  std::int64_t tokens = 0;         // positions that are not padding
  std::int64_t target_tokens = 0;  // positions with a target (samples, for regression)
};

struct StepBatch {
  std::vector<MicroBatch> micro_batches;  // of this rank
  // Over the whole step and all ranks:
  std::int64_t tokens = 0;
  std::int64_t target_tokens = 0;  // what the loss is averaged over
  double padding = 0;              // share of positions that are padding
  int first_micro_batch = 0;       // the first one's number within the step, over all ranks
};

}  // namespace zinf::data
