// One model, its batches and settings drawn from a seed; run by the naive twin and out of core.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/step/fake_compute.h"
#include "tests/step/out_of_core.h"
#include "tests/step/twin.h"

namespace zinf::testing {

constexpr double kLr = 1e-2;
constexpr Bytes kTwinWorkspace = 5000;
inline std::vector<optim::Group> decay_groups() { return {{1.0, 0.1}, {1.0, 0.0}}; }

struct Case {
  RandomInput drawn;
  double max_norm = 0;
  int steps = 3;

  const model::ModelSpec& spec() const { return *drawn.spec; }
  const plan::CompileInput& input() const { return drawn.input; }
};

inline Case draw_case(Draw& draw) {
  Case c;
  c.drawn = draw_input(draw);
  c.max_norm = draw.below(3) == 0 ? 0 : draw.coin() ? 1.0 : 1e6;
  return c;
}

// A case without chance: everything on NVMe, several chunks a piece, in bf16 with a split master.
inline Case plain_case(int layers = 3, std::int64_t layer_elements = 9000) {
  Case c;
  RandomInput& drawn = c.drawn;
  drawn.model.layers = layers;
  drawn.model.layer_elements = layer_elements;
  drawn.spec = std::make_unique<model::ModelSpec>(small_spec(drawn.model));
  drawn.format = {.weight = optim::WeightDtype::kBf16, .master = optim::MasterWeights::kSplit};
  plan::CompileInput& input = drawn.input;
  input.model = drawn.spec.get();
  input.states = layouts(drawn.format);
  input.shape = {1, 6};
  for (const model::StageSpec& stage : drawn.spec->stages) {
    const bool block = stage.kind == model::StageKind::kBlock;
    input.workspace.push_back({1000, 5000, 3000, block ? Bytes{64} : 0, 2000, 4000});
  }
  input.placement.pieces.assign(drawn.spec->pieces.size(),
                                {plan::Tier::kNvme, plan::Tier::kNvme, plan::Tier::kHost});
  input.settings.micro_batches = input.settings.group = 2;
  input.settings.chunk_elements = 2 * model::kTile;
  c.max_norm = 1;
  return c;
}

// First weights, the same wherever they go. The padding is zero.
inline std::vector<float> initial(const model::PieceSpec& piece) {
  std::vector<float> master(static_cast<std::size_t>(piece.elements), 0.0f);
  for (const model::TensorSpec& tensor : piece.tensors) {
    const std::uint64_t key =
        random_key(static_cast<std::uint64_t>(tensor.offset), tensor.elements);
    for (std::int64_t i = 0; i < tensor.elements; ++i) {
      master[tensor.offset + i] =
          static_cast<float>(random_uniform(key, static_cast<std::uint64_t>(i)) - 0.5) * 0.3f;
    }
  }
  return master;
}

// The last step is short by a micro-batch.
inline data::StepBatch batch_of(const Case& c, int step) {
  const plan::CompileInput& input = c.input();
  const int all = input.settings.micro_batches;
  return small_batch(static_cast<std::uint64_t>(step),
                     step + 1 == c.steps ? std::max(1, all - 1) : all, input.shape.rows,
                     input.shape.length, c.drawn.model.vocabulary);
}

inline std::vector<data::StepBatch> batches_of(const Case& c) {
  std::vector<data::StepBatch> batches;
  for (int step = 0; step < c.steps; ++step) batches.push_back(batch_of(c, step));
  return batches;
}

struct Outcome {
  std::string state, weights;
  std::vector<double> numbers;  // loss, norm and clip factor of every step
  bool operator==(const Outcome&) const = default;
};

inline Outcome run_twin(const Case& c) {
  FakeCompute compute(c.spec());
  const optim::Optimizer optimizer(c.drawn.format, hyper_for(c.drawn.format));
  Twin twin(c.spec(), compute, optimizer, kTwinWorkspace, c.input().gradient_type);
  for (std::size_t p = 0; p < c.spec().pieces.size(); ++p) {
    twin.set_master(static_cast<int>(p), initial(c.spec().pieces[p]).data());
  }
  Outcome outcome;
  for (const data::StepBatch& batch : batches_of(c)) {
    const Twin::Result result =
        twin.step(batch, kLr, c.max_norm, group_ranges(c.spec()), decay_groups(), OutOfCore::kSeed);
    outcome.numbers.insert(outcome.numbers.end(), {result.loss, result.norm, result.clip});
  }
  outcome.state = twin.state_hash(step::StateAccess::kElements);
  outcome.weights = twin.weights_hash();
  return outcome;
}

inline void store_initial(const Case& c, OutOfCore& engine) {
  for (std::size_t p = 0; p < c.spec().pieces.size(); ++p) {
    const model::PieceSpec& piece = c.spec().pieces[p];
    const std::vector<float> master = initial(piece);
    for (std::int64_t first = 0; first < piece.elements; first += step::StateAccess::kElements) {
      engine.access().store_master(static_cast<int>(p), 0, first,
                                   std::min(step::StateAccess::kElements, piece.elements - first),
                                   master.data() + first);
    }
  }
}

// What a test does between the steps (from 0); both may be empty.
struct StepHooks {
  std::function<void(int step)> before;
  std::function<void(int step)> queued;  // the step's update has been queued
};

// Steps over all batches, with a drain and an evaluation after step `drain_after` (-1: none), and
// the hashes.
inline Outcome run_steps(const Case& c, OutOfCore& engine, int drain_after = -1,
                         const StepHooks& hooks = {}) {
  Outcome outcome;
  const std::vector<data::StepBatch> batches = batches_of(c);
  step::Trainer& trainer = engine.trainer();
  for (int step = 0; step < c.steps; ++step) {
    if (hooks.before) hooks.before(step);
    const step::StepResult result = trainer.gradients(batches[step], kLr);
    outcome.numbers.insert(outcome.numbers.end(),
                           {result.loss, result.grad_norm, result.clip_factor});
    trainer.update(kLr);
    if (hooks.queued) hooks.queued(step);
    if (step != drain_after) continue;
    trainer.drain();
    trainer.evaluate(batches[0], c.input().settings.group);
  }
  trainer.drain();
  const step::StateAccess::Hashes hashes = engine.hashes();
  outcome.state = hashes.state;
  outcome.weights = hashes.weights;
  return outcome;
}

inline Outcome run_out_of_core(const Case& c, OutOfCoreOptions options, plan::ProgramSet programs,
                               int drain_after = -1) {
  FakeCompute compute(c.spec());
  const optim::Optimizer optimizer(c.drawn.format, hyper_for(c.drawn.format));
  options.max_norm = c.max_norm;
  OutOfCore engine(c.input(), std::move(programs), compute, optimizer, std::move(options));
  store_initial(c, engine);
  return run_steps(c, engine, drain_after);
}

inline Outcome run_out_of_core(const Case& c, OutOfCoreOptions options, int drain_after = -1) {
  return run_out_of_core(c, std::move(options), plan::compile(c.input()), drain_after);
}

}  // namespace zinf::testing
