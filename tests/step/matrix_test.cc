// Field cases as matrices: where things live, how a step is cut and how much is accumulated never
// changes a bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "tests/step/random_case.h"
#include "tests/step/temp_folder.h"
#include "tests/step/watchdog.h"

namespace zinf {
namespace {

using plan::Tier;
using testing::Case;
using testing::Outcome;
using testing::OutOfCoreOptions;
using testing::TempFolder;

constexpr Tier kTiers[] = {Tier::kDevice, Tier::kHost, Tier::kNvme};

Outcome run(const Case& c, const TempFolder& folder) {
  OutOfCoreOptions options;
  options.folder = folder.path();
  return run_out_of_core(c, options);
}

void place(Case& c, Tier weights, Tier optimizer, Tier gradients) {
  c.drawn.input.placement.pieces.assign(c.spec().pieces.size(), {weights, optimizer, gradients});
}

// BR-010: the offload target changes nothing, with and without accumulation and clipping.
TEST(Matrix, OffloadTimesAccumulationTimesClipping) {
  const testing::Watchdog watchdog("offload x accumulation x clipping");
  const TempFolder folder(testing::quick_parent());
  for (const int micro_batches : {1, 3}) {
    for (const double max_norm : {0.0, 0.5}) {
      Case c = testing::plain_case(2);
      c.steps = 5;
      c.max_norm = max_norm;
      c.drawn.input.settings.micro_batches = micro_batches;
      c.drawn.input.settings.group = micro_batches;
      const Outcome expected = run_twin(c);
      EXPECT_EQ(expected.numbers[2]<1, max_norm> 0);  // clipping does clip
      for (const Tier states : kTiers) {
        for (const Tier gradients : kTiers) {
          place(c, states, states, gradients);
          EXPECT_EQ(run(c, folder), expected)
              << tier_name(states) << ", gradients " << tier_name(gradients);
        }
      }
    }
  }
}

// BR-013: recomputing and kept activations, with weights in memory and on the drive: the same
// losses.
TEST(Matrix, RecomputeTimesWeights) {
  const testing::Watchdog watchdog("recompute x weights");
  const TempFolder folder(testing::quick_parent());
  Case c = testing::plain_case(3);
  const Outcome expected = run_twin(c);
  for (const int kept : {0, 1, 2, 99}) {
    for (const Tier weights : kTiers) {
      for (const Tier activations : kTiers) {
        place(c, weights, Tier::kNvme, Tier::kHost);
        c.drawn.input.placement.activations = activations;
        c.drawn.input.settings.kept_stages = kept;
        EXPECT_EQ(run(c, folder), expected)
            << kept << " " << tier_name(weights) << " " << tier_name(activations);
      }
    }
  }
}

// BR-014: neither the number of tensors nor their names lengthen a file's name.
TEST(Matrix, ManyTensorsWithLongNames) {
  const testing::Watchdog watchdog("names");
  const TempFolder folder(testing::quick_parent());
  Case c = testing::plain_case(100, 50);
  c.steps = 2;
  for (model::PieceSpec& piece : c.drawn.spec->pieces) {
    piece.name += std::string(300, 'n');
    for (model::TensorSpec& tensor : piece.tensors) tensor.name += std::string(300, 'n');
  }
  const Outcome expected = run_twin(c);
  OutOfCoreOptions options;
  options.folder = folder.path();
  std::size_t longest = 0;
  options.executor.perturb = [&](const plan::Op& op, plan::Segment) {
    if (op.kind != plan::OpKind::kUpdate) return;
    for (const auto& file : std::filesystem::recursive_directory_iterator(folder.path()))
      longest = std::max(longest, file.path().filename().string().size());
  };
  EXPECT_EQ(run_out_of_core(c, options), expected);
  EXPECT_GT(longest, 0u);
  EXPECT_LT(longest, 100u);
}

// BR-017: the size of an update's chunk is a memory knob only, over 20 steps.
TEST(Matrix, ChunkSizeChangesNothing) {
  const testing::Watchdog watchdog("chunks");
  const TempFolder folder(testing::quick_parent());
  Case c = testing::plain_case(1);
  c.steps = 20;
  const Outcome expected = run_twin(c);
  std::set<std::size_t> ops;
  for (const Tier states : {Tier::kHost, Tier::kNvme}) {
    for (const std::int64_t tiles : {1, 2, 3, 64}) {
      place(c, states, states, Tier::kHost);
      c.drawn.input.settings.chunk_elements = tiles * model::kTile;
      ops.insert(plan::compile(c.input()).program(plan::Segment::kUpdateForward).ops.size());
      EXPECT_EQ(run(c, folder), expected)
          << tier_name(states) << ", chunks of " << tiles << " tiles";
    }
  }
  EXPECT_GE(ops.size(), 6u);  // the programs do differ
}

std::size_t rounding_ops(const Case& c) {
  const plan::ProgramSet programs = plan::compile(c.input());
  const std::vector<plan::Op>& ops = programs.program(plan::Segment::kBackward).ops;
  return static_cast<std::size_t>(std::count_if(
      ops.begin(), ops.end(), [](const plan::Op& op) { return op.kind == plan::OpKind::kRound; }));
}

// bf16 gradients change the result, and then nothing changes that: where they wait, how a step is
// cut into groups, the size of a chunk, a table in slices.
TEST(Matrix, Bf16GradientsTimesGroupsTimesTiersTimesChunks) {
  const testing::Watchdog watchdog("bf16 gradients");
  const TempFolder folder(testing::quick_parent());
  for (const double max_norm : {0.0, 0.5}) {
    Case c = testing::plain_case(2, 20000);
    c.max_norm = max_norm;
    c.steps = 2;
    c.drawn.input.settings.micro_batches = 4;
    const Outcome fp32 = run_twin(c);
    c.drawn.input.gradient_type = model::DType::kBFloat16;
    const Outcome expected = run_twin(c);
    EXPECT_NE(expected.state, fp32.state);
    EXPECT_NEAR(expected.numbers[1], fp32.numbers[1], 0.01 * fp32.numbers[1]);
    std::set<std::size_t> rounded;
    for (const Tier gradients : kTiers) {
      for (const int group : {1, 2, 4}) {
        for (const std::int64_t tiles : {1, 2, 64}) {
          for (const std::int64_t slice_rows : {0, 512}) {
            place(c, Tier::kNvme, Tier::kNvme, gradients);
            c.drawn.input.settings.group = group;
            c.drawn.input.settings.chunk_elements = tiles * model::kTile;
            c.drawn.input.settings.slice_rows = slice_rows;
            rounded.insert(rounding_ops(c));
            EXPECT_EQ(run(c, folder), expected)
                << tier_name(gradients) << ", group " << group << ", chunks of " << tiles
                << " tiles, slices of " << slice_rows;
          }
        }
      }
    }
    EXPECT_GE(rounded.size(), 3u);  // the programs do differ
    EXPECT_FALSE(rounded.contains(0));
  }
}

// BR-032: every micro-batch counts, wherever the gradient waits. The same batch n times gives n
// times the gradient.
TEST(Matrix, AccumulationIsIndependentOfOffload) {
  const testing::Watchdog watchdog("accumulation");
  const TempFolder folder(testing::quick_parent());
  double alone = 0;
  for (const int micro_batches : {1, 2, 4, 8}) {
    std::set<double> norms;
    for (const Tier gradients : kTiers) {
      for (const int group : {1, micro_batches}) {
        Case c = testing::plain_case(2);
        place(c, Tier::kNvme, Tier::kNvme, gradients);
        c.drawn.input.settings.micro_batches = micro_batches;
        c.drawn.input.settings.group = group;
        data::StepBatch batch = testing::small_batch(1, 1, 1, 6, c.drawn.model.vocabulary);
        batch.micro_batches.resize(static_cast<std::size_t>(micro_batches), batch.micro_batches[0]);
        testing::FakeCompute compute(c.spec());
        const optim::Optimizer optimizer(c.drawn.format, {});
        OutOfCoreOptions options;
        options.folder = folder.path();
        testing::OutOfCore engine(c.input(), plan::compile(c.input()), compute, optimizer, options);
        store_initial(c, engine);
        norms.insert(engine.trainer().gradients(batch).grad_norm);
        engine.trainer().skip();
      }
    }
    ASSERT_EQ(norms.size(), 1u) << micro_batches << " micro-batches";
    if (micro_batches == 1) alone = *norms.begin();
    EXPECT_NEAR(*norms.begin() / micro_batches, alone, 1e-5 * alone);
  }
}

}  // namespace
}  // namespace zinf
