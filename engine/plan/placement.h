// What lives where, and the knobs that the compiler takes: all plain data, decided by the planner.
#pragma once

#include <string>
#include <vector>

#include "engine/plan/program.h"

namespace zinf::plan {

// One state of a trainable piece, from the optimizer's schema. States are stored one after the
// other per piece.
struct StateLayout {
  std::string name;
  Bytes bytes_per_tile = 0;  // per model::kTile elements
  bool weight = false;       // the working weight: what compute reads
  bool starts_zero = false;  // a moment: zero until the first update, not read by it
  Bytes bytes(std::int64_t elements) const {
    return static_cast<Bytes>((elements + model::kTile - 1) / model::kTile) * bytes_per_tile;
  }
  Bytes page_bytes() const { return bytes(kPageElements); }
};

// Compute sums gradients in fp32.
inline Bytes gradient_sum_bytes(std::int64_t elements) {
  return static_cast<Bytes>(elements) * model::size_of(model::DType::kFloat32);
}

struct PiecePlacement {
  Tier weights = Tier::kNvme;
  Tier optimizer = Tier::kNvme;  // every state but the weight
  Tier gradients = Tier::kHost;  // where the accumulated gradient waits for its update
};

struct Placement {
  std::vector<PiecePlacement> pieces;
  Tier activations = Tier::kDevice;  // saved inputs of stages between forward and backward
};

struct ShapeClass {
  int rows = 1;
  int length = 1;
  std::int64_t positions() const { return static_cast<std::int64_t>(rows) * length; }
};

struct StageWorkspace {
  Bytes forward = 0;
  Bytes backward = 0;
  Bytes evaluate = 0;      // head only: loss without gradient, next token
  Bytes kept = 0;          // per micro-batch, when activations are kept
  Bytes forward_keep = 0;  // workspace of the calls that fill and read kept activations
  Bytes backward_kept = 0;
  Bytes slice_forward = 0;  // head only: calls with a slice of the table
  Bytes slice_backward = 0;
};

struct CompileSettings {
  int micro_batches = 1;
  int group = 1;  // micro-batches per visit
  // The last stages before the head whose activations are kept for the backward pass; those of the
  // others are computed again.
  int kept_stages = 0;
  int prefetch = 1;      // visits whose weights are on the device ahead of their turn
  int keep_at_turn = 0;  // last blocks whose weights stay on the device from forward to backward
  std::int64_t chunk_elements = 1 << 20;  // of an update; a multiple of model::kTile
  int ring_slots = 4;                     // staging slots of one chunk each
  bool overlap = true;  // false: every op waits for the one before it (for tests and comparison)
  bool commit_each_step =
      false;      // a commit op closes each update, and the next step's writes wait for it
  int slots = 2;  // of mutable NVMe extents
  // How many pieces, in the order of backward, are updated during backward when the step allows it.
  // Counts only pieces that can be: every state on NVMe, not a lookup's table.
  int early_updates = 0;
  // The head gets its table in slices of so many rows, twice a visit, instead of as a whole (0):
  // for tables that the device can't hold. Rows times width are whole tiles.
  std::int64_t slice_rows = 0;
};

struct CompileInput {
  const model::ModelSpec* model = nullptr;
  std::vector<StateLayout> states;  // weight first
  Placement placement;
  // Of a complete gradient, which waits for its update: fp32 or bf16. Sums that a later group goes
  // on with are fp32 in any case, so that the groups change no bit.
  model::DType gradient_type = model::DType::kFloat32;
  ShapeClass shape;                       // the largest class: buffers are sized for it
  std::vector<StageWorkspace> workspace;  // per stage, for that class
  CompileSettings settings;

  Bytes gradient_bytes(std::int64_t elements) const {
    return static_cast<Bytes>(elements) * model::size_of(gradient_type);
  }
  bool can_keep_activations(int stage) const {
    return model->stages[stage].kind == model::StageKind::kBlock && workspace[stage].kept > 0;
  }
  bool keeps_activations(int stage) const {
    const int head = static_cast<int>(model->stages.size()) - 1;
    return stage >= head - settings.kept_stages && can_keep_activations(stage);
  }
  bool rounds_gradients() const { return gradient_type != model::DType::kFloat32; }
};

}  // namespace zinf::plan
