// What must not change does not: a step with a non-finite gradient, an evaluation, a sample. And
// the state goes on from one placement to another.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/step/random_case.h"
#include "tests/step/temp_folder.h"
#include "tests/step/watchdog.h"

namespace zinf {
namespace {

using testing::Case;
using testing::Draw;
using testing::OutOfCore;
using testing::OutOfCoreOptions;
using testing::TempFolder;

class BadCompute : public testing::FakeCompute {
 public:
  using FakeCompute::FakeCompute;
  int bad_piece = -1;
  bool bad_loss = false;

 protected:
  float gradient_of(int piece, float value) override {
    return piece == bad_piece ? std::numeric_limits<float>::quiet_NaN() : value;
  }
  double loss_of(double value) override {
    return bad_loss ? std::numeric_limits<double>::infinity() : value;
  }
};

// A value that is not finite, born in a layer's backward, spreads to the gradients of all that
// backward computes after it: the layers in front and the table, whether or not it is the head's
// too.
class SpreadingCompute : public testing::FakeCompute {
 public:
  using FakeCompute::FakeCompute;
  std::vector<int> bad_pieces;
  int bad_stage = -1;

 protected:
  float gradient_of(int piece, float value) override {
    const bool bad = std::find(bad_pieces.begin(), bad_pieces.end(), piece) != bad_pieces.end();
    return bad ? std::numeric_limits<float>::quiet_NaN() : value;
  }
  float output_of(int stage, float value) override {
    return stage == bad_stage ? std::numeric_limits<float>::infinity() : value;
  }
  double loss_of(double value) override {
    return bad_stage >= 0 ? std::numeric_limits<double>::quiet_NaN() : value;
  }
};

TEST(NonFinite, NamesWhereBackwardMetItFirst) {
  const testing::Watchdog watchdog("non-finite");
  const TempFolder folder(testing::quick_parent());
  for (const bool tied : {false, true}) {
    Case c = testing::plain_case();
    c.drawn.model.tied = tied;
    *c.drawn.spec = testing::small_spec(c.drawn.model);
    c.drawn.input.placement.pieces.resize(c.spec().pieces.size());
    SpreadingCompute compute(c.spec());
    const optim::Optimizer optimizer(c.drawn.format, testing::hyper_for(c.drawn.format));
    OutOfCoreOptions options;
    options.folder = folder.path();
    OutOfCore engine(c.input(), plan::compile(c.input()), compute, optimizer, options);
    store_initial(c, engine);
    const std::vector<data::StepBatch> batches = batches_of(c);
    constexpr int kTable = 0;
    compute.bad_pieces = {kTable};
    for (int layer = 1; layer <= c.drawn.model.layers; ++layer) {
      compute.bad_pieces.push_back(layer);
      const step::StepResult bad = engine.trainer().gradients(batches[0]);
      EXPECT_FALSE(bad.finite);
      EXPECT_EQ(bad.first_bad_piece, layer) << "tied: " << tied;
      engine.trainer().skip();
    }
    // Born in a forward: the layer's output, or the loss itself.
    compute.bad_pieces.clear();
    const int stages = static_cast<int>(c.spec().stages.size());
    const int group = c.input().settings.group;
    for (compute.bad_stage = 1; compute.bad_stage < stages; ++compute.bad_stage)
      EXPECT_EQ(engine.trainer().first_bad_stage(batches[0], group), compute.bad_stage);
    compute.bad_stage = -1;
    EXPECT_EQ(engine.trainer().first_bad_stage(batches[0], group), -1);
  }
}

// The state after a skipped step is that before it, and training goes on as if it had never been.
TEST(NonFinite, ASkippedStepChangesNothing) {
  const testing::Watchdog watchdog("non-finite");
  const TempFolder folder(testing::quick_parent());
  for (int seed = 0; seed < 10; ++seed) {
    Draw draw(static_cast<std::uint64_t>(seed) + 300);
    Case c = testing::draw_case(draw);
    const int last = static_cast<int>(c.spec().pieces.size()) - 1;
    if (!c.spec().pieces[last].trainable) continue;
    BadCompute compute(c.spec());
    const optim::Optimizer optimizer(c.drawn.format, testing::hyper_for(c.drawn.format));
    OutOfCoreOptions options;
    options.folder = folder.path();
    options.max_norm = c.max_norm;
    OutOfCore engine(c.input(), plan::compile(c.input()), compute, optimizer, options);
    store_initial(c, engine);
    step::Trainer& trainer = engine.trainer();
    const std::vector<data::StepBatch> batches = batches_of(c);
    trainer.gradients(batches[0]);
    trainer.update(testing::kLr);
    trainer.drain();
    const auto before = engine.hashes();

    for (const bool loss : {false, true}) {
      compute.bad_piece = loss ? -1 : last;
      compute.bad_loss = loss;
      const step::StepResult bad = trainer.gradients(batches[1]);
      EXPECT_FALSE(bad.finite);
      EXPECT_EQ(bad.first_bad_piece, compute.bad_piece);
      EXPECT_EQ(bad.clip_factor, 1.0);
      trainer.skip();
      EXPECT_EQ(engine.hashes().state, before.state) << "seed " << seed;
      EXPECT_EQ(trainer.version(), 1);
    }
    compute.bad_piece = -1;
    compute.bad_loss = false;
    for (int step = 1; step < c.steps; ++step) {
      EXPECT_TRUE(trainer.gradients(batches[step]).finite);
      trainer.update(testing::kLr);
    }
    trainer.drain();
    EXPECT_EQ(engine.hashes().state, run_twin(c).state) << "seed " << seed;
  }
}

// A power of two scales every gradient exactly, also one that is rounded to bf16, so the state has
// the bits of a run without it: the norm, the clip factor and the update all divide by it, also
// where it changes from step to step.
TEST(LossScale, ChangesNoBit) {
  const testing::Watchdog watchdog("loss scale");
  const TempFolder folder(testing::quick_parent());
  for (int seed = 0; seed < 12; ++seed) {
    Draw draw(static_cast<std::uint64_t>(seed) + 600);
    Case c = testing::draw_case(draw);
    c.drawn.input.gradient_type = seed % 2 == 0 ? model::DType::kFloat32 : model::DType::kBFloat16;
    testing::FakeCompute compute(c.spec());
    const optim::Optimizer optimizer(c.drawn.format, testing::hyper_for(c.drawn.format));
    OutOfCoreOptions options;
    options.folder = folder.path();
    options.max_norm = c.max_norm;
    OutOfCore engine(c.input(), plan::compile(c.input()), compute, optimizer, options);
    store_initial(c, engine);
    const auto rescale = [&](int step) {
      engine.trainer().set_loss_scale(step % 2 == 0 ? 256.0 : 2048.0);
    };
    const testing::Outcome found = run_steps(c, engine, -1, {rescale, {}});
    const testing::Outcome expected = run_twin(c);
    EXPECT_EQ(found.numbers, expected.numbers) << "seed " << seed;
    EXPECT_EQ(found.state, expected.state) << "seed " << seed;
    EXPECT_EQ(found.weights, expected.weights) << "seed " << seed;
  }
}

TEST(Evaluation, LeavesTheStateAsItIs) {
  const testing::Watchdog watchdog("evaluation");
  const TempFolder folder(testing::quick_parent());
  for (int seed = 0; seed < 10; ++seed) {
    Draw draw(static_cast<std::uint64_t>(seed) + 400);
    const Case c = testing::draw_case(draw);
    testing::FakeCompute compute(c.spec());
    const optim::Optimizer optimizer(c.drawn.format, testing::hyper_for(c.drawn.format));
    OutOfCoreOptions options;
    options.folder = folder.path();
    OutOfCore engine(c.input(), plan::compile(c.input()), compute, optimizer, options);
    store_initial(c, engine);
    step::Trainer& trainer = engine.trainer();
    const data::StepBatch batch = batch_of(c, 0);
    trainer.gradients(batch);
    trainer.update(testing::kLr);
    trainer.drain();
    const auto before = engine.hashes();
    const auto once = trainer.evaluate(batch, c.input().settings.group);
    const data::StepBatch one =
        testing::small_batch(9, 1, 1, c.input().shape.length, c.drawn.model.vocabulary);
    const std::int32_t token = trainer.next_token(one);
    EXPECT_EQ(trainer.next_token(one), token);
    const auto again = trainer.evaluate(batch, 1);
    EXPECT_EQ(once.target_tokens, batch.target_tokens);
    EXPECT_EQ(once.loss_sum, again.loss_sum);  // whatever the group
    EXPECT_EQ(engine.hashes().state, before.state) << "seed " << seed;
    EXPECT_EQ(engine.hashes().weights, before.weights);
  }
}

// Written through under one placement, gone on with under another: the bits of a run that never
// stopped.
TEST(Resume, GoesOnUnderAnyOtherPlacement) {
  const testing::Watchdog watchdog("resume");
  const TempFolder folder(testing::quick_parent());
  for (int seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(static_cast<std::uint64_t>(seed) + 500);
    Case c = testing::draw_case(draw);
    c.steps = 4;
    const std::vector<data::StepBatch> batches = batches_of(c);
    testing::FakeCompute compute(c.spec());
    const optim::Optimizer optimizer(c.drawn.format, testing::hyper_for(c.drawn.format));
    OutOfCoreOptions options;
    options.folder = folder.path();
    options.max_norm = c.max_norm;
    std::string saved;
    {
      OutOfCore engine(c.input(), plan::compile(c.input()), compute, optimizer, options);
      store_initial(c, engine);
      step::Trainer& trainer = engine.trainer();
      const int steps = draw.below(3);  // none: moments are zero, and were never written
      for (int step = 0; step < steps; ++step) {
        trainer.gradients(batches[step]);
        trainer.update(testing::kLr);
      }
      trainer.drain();
      engine.access().write_through(trainer.slot(), trainer.moments_are_zero());
      engine.tiers().store()->sync();
      saved = engine.hashes().state;
      options.version = trainer.version();
      options.slot = trainer.slot();
      options.moments_are_zero = trainer.moments_are_zero();
    }
    for (auto& placement : c.drawn.input.placement.pieces)
      placement = {draw.tier(), draw.tier(), draw.tier()};
    c.drawn.input.placement.activations = draw.tier();
    c.drawn.input.settings.group = 1 + draw.below(c.input().settings.micro_batches);
    options.open_mode = nvme::OpenMode::kReopen;
    OutOfCore engine(c.input(), plan::compile(c.input()), compute, optimizer, options);
    engine.access().restore(options.slot, options.moments_are_zero);
    ASSERT_EQ(engine.hashes().state, saved);
    step::Trainer& trainer = engine.trainer();
    for (int step = static_cast<int>(options.version); step < c.steps; ++step) {
      trainer.gradients(batches[step]);
      trainer.update(testing::kLr);
    }
    trainer.drain();
    ASSERT_EQ(engine.hashes().state, run_twin(c).state);
  }
}

}  // namespace
}  // namespace zinf
