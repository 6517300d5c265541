// Compile inputs for tests: state layouts of a format, and inputs drawn from a seed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cpu_optim/optimizer.h"
#include "engine/base/random.h"
#include "engine/plan/compile.h"
#include "tests/step/small_models.h"

namespace zinf::testing {

inline std::vector<plan::StateLayout> layouts(const optim::Format& format) {
  std::vector<plan::StateLayout> result;
  for (const optim::StateSpec& state : optim::schema(format)) {
    plan::StateLayout layout;
    layout.name = std::string(state.name);
    layout.bytes_per_tile = state.bytes(model::kTile);
    layout.weight = result.empty();
    layout.starts_zero = state.is_moment;
    result.push_back(layout);
  }
  return result;
}

// Hyper-parameters that the format demands.
inline optim::Hyper hyper_for(const optim::Format& format) {
  optim::Hyper hyper;
  if (format.algorithm == optim::Algorithm::kSgd && format.has_momentum) hyper.momentum = 0.9;
  return hyper;
}

// Draws one value after the other from a seed.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : key_(random_key(seed, 4711)) {}
  int below(int bound) {
    return static_cast<int>(random_below(key_, next_++, static_cast<std::uint64_t>(bound)));
  }
  bool coin() { return below(2) == 1; }
  plan::Tier tier() { return static_cast<plan::Tier>(below(3)); }

 private:
  std::uint64_t key_;
  std::uint64_t next_ = 0;
};

struct RandomInput {
  SmallModel model;
  std::unique_ptr<model::ModelSpec> spec;
  optim::Format format;
  plan::CompileInput input;  // input.model is spec
};

inline optim::Format draw_format(Draw& draw, model::DType type) {
  optim::Format format;
  format.weight = type == model::DType::kFloat32   ? optim::WeightDtype::kFp32
                  : type == model::DType::kFloat16 ? optim::WeightDtype::kFp16
                                                   : optim::WeightDtype::kBf16;
  if (type == model::DType::kBFloat16)
    format.master = static_cast<optim::MasterWeights>(draw.below(3));
  format.moments = static_cast<optim::StateDtype>(draw.below(3));
  format.algorithm =
      draw.coin() ? optim::Algorithm::kAdamW : static_cast<optim::Algorithm>(draw.below(5));
  return optim::why_invalid(format).empty()
             ? format
             : optim::Format{.weight = format.weight, .master = format.master};
}

// Freezes nothing, one whole piece, or one layer's bias (which then is a piece of its own in a
// block of two).
inline void draw_frozen(Draw& draw, model::ModelSpec& spec) {
  const int choice = draw.below(6);
  if (choice == 0) {
    spec.pieces[draw.below(static_cast<int>(spec.pieces.size()))].trainable = false;
  } else if (choice == 1) {
    apply_freeze(spec, {"l0.bias"});
  }
}

inline RandomInput draw_input(Draw& draw) {
  RandomInput drawn;
  drawn.model.layers = 1 + draw.below(4);
  drawn.model.tied = draw.coin();
  drawn.model.type = draw.coin()          ? model::DType::kBFloat16
                     : draw.below(4) == 0 ? model::DType::kFloat16
                                          : model::DType::kFloat32;
  drawn.spec = std::make_unique<model::ModelSpec>(small_spec(drawn.model));
  draw_frozen(draw, *drawn.spec);
  drawn.format = draw_format(draw, drawn.model.type);
  plan::CompileInput& input = drawn.input;
  input.model = drawn.spec.get();
  input.states = layouts(drawn.format);
  input.shape = {1 + draw.below(2), 3 + draw.below(6)};
  for (const model::StageSpec& stage : drawn.spec->stages) {
    const bool block = stage.kind == model::StageKind::kBlock;
    input.workspace.push_back({1000, 5000, 3000, block ? Bytes{64} : 0, 2000, 4000, 1500, 2500});
  }
  input.placement.activations = draw.tier();
  for (std::size_t p = 0; p < drawn.spec->pieces.size(); ++p) {
    input.placement.pieces.push_back({draw.tier(), draw.tier(), draw.tier()});
  }
  plan::CompileSettings& s = input.settings;
  s.micro_batches = 1 + draw.below(5);
  s.group = 1 + draw.below(s.micro_batches);
  s.kept_stages = draw.below(static_cast<int>(drawn.spec->stages.size()) + 1);
  s.prefetch = draw.below(4);
  s.keep_at_turn = draw.below(3);
  // A chunk of 8-bit moments starts on a page only every 64 tiles.
  const bool bytes = drawn.format.moments == optim::StateDtype::kInt8;
  s.chunk_elements = model::kTile * (bytes ? 64 : 1 + draw.below(3));
  s.ring_slots = 2 + draw.below(5);
  s.overlap = draw.below(4) != 0;
  s.commit_each_step = draw.coin();
  s.slots = 1 + draw.below(2);
  if (draw.below(3) == 0) s.slice_rows = 512;  // of 700: two slices
  // Early updates want everything on NVMe, two slots and commits: draw them together.
  if (draw.below(3) == 0) {
    s.slots = 2;
    s.commit_each_step = true;
    s.early_updates = 1 + draw.below(4);
    for (plan::PiecePlacement& piece : input.placement.pieces) {
      if (draw.below(4) != 0) piece.weights = piece.optimizer = plan::Tier::kNvme;
    }
  }
  if (draw.below(3) == 0) input.gradient_type = model::DType::kBFloat16;
  return drawn;
}

}  // namespace zinf::testing
