// Updates during backward: accepted, redone or dropped, the state has the bits of the naive twin.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "tests/step/random_case.h"
#include "tests/step/temp_folder.h"
#include "tests/step/watchdog.h"

namespace zinf {
namespace {

using plan::Segment;
using step::Speculate;
using testing::Case;
using testing::Outcome;
using testing::OutOfCore;
using testing::OutOfCoreOptions;
using testing::TempFolder;

constexpr int kAll = 99;

Case early_case(double max_norm, int early_updates = kAll) {
  Case c = testing::plain_case();
  c.drawn.model.tied = true;
  c.max_norm = max_norm;
  c.steps = 4;
  c.drawn.input.settings.commit_each_step = true;
  c.drawn.input.settings.early_updates = early_updates;
  return c;
}

struct Ran {
  Outcome outcome;
  std::int64_t speculated = 0, redone = 0;
  int early_updates = 0;  // ops
};

Ran run(const Case& c, Speculate speculate, plan::ProgramSet programs) {
  const TempFolder folder(testing::quick_parent());
  const testing::Watchdog watchdog("speculation");
  testing::FakeCompute compute(c.spec());
  const optim::Optimizer optimizer(c.drawn.format, testing::hyper_for(c.drawn.format));
  OutOfCoreOptions options;
  options.folder = folder.path();
  options.max_norm = c.max_norm;
  options.speculate = speculate;
  std::atomic<int> updates{0};
  options.executor.perturb = [&](const plan::Op& op, Segment segment) {
    updates += segment == Segment::kBackwardEarly && op.kind == plan::OpKind::kUpdate;
  };
  OutOfCore engine(c.input(), std::move(programs), compute, optimizer, options);
  store_initial(c, engine);
  Ran ran;
  ran.outcome = run_steps(c, engine);
  ran.speculated = engine.trainer().speculated();
  ran.redone = engine.trainer().redone();
  ran.early_updates = updates;
  return ran;
}

Ran run(const Case& c, Speculate speculate) { return run(c, speculate, compile(c.input())); }

TEST(Speculation, AcceptedWhereNothingClips) {
  for (const double max_norm : {0.0, 1e6}) {
    const Case c = early_case(max_norm);
    const Ran ran = run(c, Speculate::kAlways);
    EXPECT_EQ(ran.outcome, run_twin(c));
    EXPECT_EQ(ran.speculated, c.steps);
    EXPECT_EQ(ran.redone, 0);
    EXPECT_GT(ran.early_updates, c.steps);
  }
}

TEST(Speculation, RedoneWhereTheNormClips) {
  const Case c = early_case(1e-3);
  const Ran ran = run(c, Speculate::kAlways);
  EXPECT_EQ(ran.outcome, run_twin(c));
  EXPECT_EQ(ran.speculated, c.steps);
  EXPECT_EQ(ran.redone, c.steps);
}

// A limit at the median of the norms: some steps clip and are redone, the others stand.
TEST(Speculation, RedoneOnlyWhereTheNormClips) {
  Case c = early_case(0);
  c.steps = 8;
  const Outcome unclipped = run_twin(c);
  std::vector<double> norms;
  for (std::size_t i = 1; i < unclipped.numbers.size(); i += 3)
    norms.push_back(unclipped.numbers[i]);
  std::nth_element(norms.begin(), norms.begin() + c.steps / 2, norms.end());
  c.max_norm = norms[static_cast<std::size_t>(c.steps / 2)];
  const Ran ran = run(c, Speculate::kAlways);
  EXPECT_EQ(ran.speculated, c.steps);
  EXPECT_GT(ran.redone, 0);
  EXPECT_LT(ran.redone, ran.speculated);
  EXPECT_EQ(ran.outcome, run_twin(c));
  EXPECT_EQ(ran.outcome, run(c, Speculate::kNever).outcome);
  EXPECT_NE(ran.outcome.state, unclipped.state);
}

TEST(Speculation, SpilledGradientsAreThereForTheRedo) {
  for (const double max_norm : {1e6, 1e-3}) {
    Case c = early_case(max_norm);
    for (plan::PiecePlacement& piece : c.drawn.input.placement.pieces)
      piece.gradients = plan::Tier::kNvme;
    EXPECT_EQ(run(c, Speculate::kAlways).outcome, run_twin(c));
  }
}

// The early update and the redo use the same rounded gradient.
TEST(Speculation, Bf16GradientsAreThereForTheRedo) {
  for (const double max_norm : {1e6, 1e-3}) {
    for (const plan::Tier gradients : {plan::Tier::kDevice, plan::Tier::kHost, plan::Tier::kNvme}) {
      for (const int group : {1, 2}) {
        Case c = early_case(max_norm);
        const Outcome fp32 = run_twin(c);
        c.drawn.input.gradient_type = model::DType::kBFloat16;
        c.drawn.input.settings.group = group;
        for (plan::PiecePlacement& piece : c.drawn.input.placement.pieces)
          piece.gradients = gradients;
        const Ran ran = run(c, Speculate::kAlways);
        EXPECT_EQ(ran.outcome, run_twin(c)) << tier_name(gradients) << ", group " << group;
        EXPECT_NE(ran.outcome.state, fp32.state);
        EXPECT_EQ(ran.speculated, c.steps);
        EXPECT_EQ(ran.redone, max_norm < 1 ? c.steps : 0);
      }
    }
  }
}

TEST(Speculation, OnlySomePiecesAndSeveralGroups) {
  for (const int early : {1, 2}) {
    Case c = early_case(1e6, early);
    c.drawn.input.settings.group = 1;
    const Ran ran = run(c, Speculate::kAlways);
    EXPECT_EQ(ran.outcome, run_twin(c));
    EXPECT_EQ(ran.redone, 0);
  }
}

// Eight steps without clipping first; one that clips ends it.
TEST(Speculation, RarelyWaitsUntilClippingIsRare) {
  Case c = early_case(1e6);
  c.steps = 12;
  const Ran calm = run(c, Speculate::kRarely);
  EXPECT_EQ(calm.outcome, run_twin(c));
  EXPECT_EQ(calm.speculated, c.steps - 8);
  c.max_norm = 1e-3;
  const Ran clipping = run(c, Speculate::kRarely);
  EXPECT_EQ(clipping.outcome, run_twin(c));
  EXPECT_EQ(clipping.speculated, 0);
  EXPECT_EQ(run(c, Speculate::kNever).outcome, clipping.outcome);
}

// What a dropped step has written early lies in the slot that holds nothing.
TEST(Speculation, ADroppedStepChangesNothing) {
  const Case c = early_case(0);
  const TempFolder folder(testing::quick_parent());
  testing::FakeCompute compute(c.spec());
  const optim::Optimizer optimizer(c.drawn.format, testing::hyper_for(c.drawn.format));
  OutOfCoreOptions options;
  options.folder = folder.path();
  OutOfCore engine(c.input(), compile(c.input()), compute, optimizer, options);
  store_initial(c, engine);
  const auto batches = batches_of(c);
  step::Trainer& trainer = engine.trainer();
  trainer.gradients(batches[0], testing::kLr);
  trainer.update(testing::kLr);
  trainer.drain();
  const std::string before = engine.hashes().state;
  trainer.gradients(batches[1], testing::kLr);
  EXPECT_EQ(trainer.speculated(), 2);
  trainer.skip();
  EXPECT_EQ(engine.hashes().state, before);
  trainer.gradients(batches[1], testing::kLr);
  trainer.update(testing::kLr);
  trainer.drain();
  EXPECT_NE(engine.hashes().state, before);
}

// Another learning rate than the announced one is a reason to redo as well.
TEST(Speculation, AnotherLearningRateIsRedone) {
  const Case c = early_case(0);
  const TempFolder folder(testing::quick_parent());
  testing::FakeCompute compute(c.spec());
  const optim::Optimizer optimizer(c.drawn.format, testing::hyper_for(c.drawn.format));
  std::string first;
  for (const double announced : {testing::kLr, testing::kLr / 2}) {
    OutOfCoreOptions options;
    options.folder = folder.path();
    OutOfCore engine(c.input(), compile(c.input()), compute, optimizer, options);
    store_initial(c, engine);
    const auto batches = batches_of(c);
    engine.trainer().gradients(batches[0], announced);
    engine.trainer().update(testing::kLr);
    engine.trainer().drain();
    EXPECT_EQ(engine.trainer().redone(), announced == testing::kLr ? 0 : 1);
    if (first.empty()) first = engine.hashes().state;
    EXPECT_EQ(engine.hashes().state, first);
  }
}

// The tests above can fail: weights read as they were before the early update are noticed, and so
// is an early update that is not redone.
TEST(Speculation, PlantedFaultsAreNoticed) {
  const Case accepted = early_case(1e6);
  plan::ProgramSet stale = compile(accepted.input());
  for (plan::Op& op : stale.programs[static_cast<int>(Segment::kRestForward)].ops)
    op.after_update = false;
  EXPECT_NE(run(accepted, Speculate::kAlways, std::move(stale)).outcome, run_twin(accepted));

  const Case redone = early_case(1e-3);
  plan::ProgramSet kept = compile(redone.input());
  for (const auto& [from, to] : {std::pair(Segment::kRestForward, Segment::kUpdateForward),
                                 std::pair(Segment::kRestOnly, Segment::kUpdateOnly)}) {
    kept.programs[static_cast<int>(to)].ops = kept.program(from).ops;
    kept.links[static_cast<int>(Segment::kBackwardEarly)][static_cast<int>(to)] =
        kept.links[static_cast<int>(Segment::kBackwardEarly)][static_cast<int>(from)];
    kept.links[static_cast<int>(to)][static_cast<int>(Segment::kBackwardEarly)] =
        kept.links[static_cast<int>(from)][static_cast<int>(Segment::kBackwardEarly)];
  }
  // A redo that leaves the early pieces out is refused before the first step.
  EXPECT_THROW(run(redone, Speculate::kAlways, std::move(kept)), Error);
}

}  // namespace
}  // namespace zinf
