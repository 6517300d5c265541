// Bytes are exact: what a steady step reads and writes on NVMe is the closed form of the design's
// table.
#include <gtest/gtest.h>

#include "engine/plan/simulate.h"
#include "tests/plan/random_input.h"

namespace zinf {
namespace {

using optim::MasterWeights;
using optim::StateDtype;
using optim::WeightDtype;
using plan::Tier;
using testing::SmallModel;

struct Row {
  const char* name;
  optim::Format format;
  double read, written;  // the design's bytes per parameter, with everything on NVMe and the update
                         // beside forward
  double weight;         // bytes of a working weight
};

const Row kRows[] = {
    {"bf16 and remainder",
     {.weight = WeightDtype::kBf16, .master = MasterWeights::kSplit},
     14,
     12,
     2},
    {"bf16 and fp32 master",
     {.weight = WeightDtype::kBf16, .master = MasterWeights::kFp32},
     14,
     14,
     2},
    {"fp32", {.weight = WeightDtype::kFp32}, 16, 12, 4},
    {"split master, 8-bit moments",
     {.weight = WeightDtype::kBf16, .master = MasterWeights::kSplit, .moments = StateDtype::kInt8},
     8.03125,
     6.03125,
     2},
    {"stochastic rounding, 8-bit moments",
     {.weight = WeightDtype::kBf16, .master = MasterWeights::kBf16Sr, .moments = StateDtype::kInt8},
     6.03125,
     4.03125,
     2},
};

plan::CompileInput nvme_input(const model::ModelSpec& spec, const optim::Format& format,
                              int micro_batches, int group) {
  plan::CompileInput input;
  input.model = &spec;
  input.states = testing::layouts(format);
  input.shape = {1, 8};
  input.workspace.assign(spec.stages.size(), {});
  input.placement.pieces.assign(spec.pieces.size(), {Tier::kNvme, Tier::kNvme, Tier::kHost});
  input.settings.micro_batches = micro_batches;
  input.settings.group = group;
  input.settings.chunk_elements = 64 * model::kTile;
  return input;
}

// Pieces by what the turn and further groups do with them.
struct Elements {
  double blocks = 0, table = 0, head_only = 0, last_block = 0;
  double all() const { return blocks + table + head_only; }
};

Elements count(const model::ModelSpec& spec) {
  Elements elements;
  for (const model::PieceSpec& piece : spec.pieces) {
    const auto n = static_cast<double>(piece.elements);
    if (piece.table) {
      elements.table += n;
    } else if (piece.name == "norm" || piece.name == "lm_head") {
      elements.head_only += n;
    } else {
      elements.blocks += n;
      elements.last_block = n;
    }
  }
  return elements;
}

// Transfers are whole pages: a piece whose 8-bit moments end inside a page moves the rest of it
// too.
double tails(const model::ModelSpec& spec, const optim::Format& format) {
  double bytes = 0;
  for (const model::PieceSpec& piece : spec.pieces) {
    for (const plan::StateLayout& state : testing::layouts(format)) {
      bytes += static_cast<double>(round_up(state.bytes(piece.elements), 4096) -
                                   state.bytes(piece.elements));
    }
  }
  return bytes;
}

model::ModelSpec spec_for(const Row& row, bool tied) {
  SmallModel small;
  small.tied = tied;
  small.layers = 4;
  small.layer_elements = 150000;  // several chunks
  small.type = row.weight == 2 ? model::DType::kBFloat16 : model::DType::kFloat32;
  return testing::small_spec(small);
}

TEST(Traffic, EverythingOnNvmeIsTheDesignsTable) {
  for (const Row& row : kRows) {
    for (const int micro_batches : {1, 8}) {
      SCOPED_TRACE(str(row.name, ", ", micro_batches, " micro-batches"));
      const model::ModelSpec spec = spec_for(row, true);
      const plan::CompileInput input = nvme_input(spec, row.format, micro_batches, micro_batches);
      const plan::TrafficForecast found = traffic(compile(input));
      const Elements n = count(spec);
      // The head's norm stays on the device from its update to the head: the turn saves its read.
      EXPECT_EQ(static_cast<double>(found.nvme_read),
                row.read * n.all() - row.weight * n.head_only + tails(spec, row.format));
      EXPECT_EQ(static_cast<double>(found.nvme_write),
                row.written * n.all() + tails(spec, row.format));
    }
  }
}

// 8-bit moments take 8.03 + 6.03 exactly where pieces are multiples of 64 tiles.
TEST(Traffic, EightBitMomentsWithoutTails) {
  const Row& row = kRows[3];
  model::ModelSpec spec =
      testing::small_spec({.layers = 2, .width = 64, .layer_elements = 1, .vocabulary = 4096});
  for (model::PieceSpec& piece : spec.pieces) piece.elements = 64 * model::kTile;
  const plan::TrafficForecast found = traffic(compile(nvme_input(spec, row.format, 8, 8)));
  const double one = 64 * model::kTile;
  EXPECT_EQ(tails(spec, row.format), 0);
  EXPECT_EQ(static_cast<double>(found.nvme_read),
            4 * one * 8.03125 - 2 * one);  // four pieces; the norm stays at the turn
  EXPECT_EQ(static_cast<double>(found.nvme_write), 4 * one * 6.03125);
}

TEST(Traffic, KeptAtTheTurnSavesItsRead) {
  const Row& row = kRows[0];
  const model::ModelSpec spec = spec_for(row, false);
  plan::CompileInput input = nvme_input(spec, row.format, 4, 4);
  const Elements n = count(spec);
  // An untied table is not needed by backward, an untied head stays for it.
  const double without = 14 * n.all() - 2 * (n.table + n.head_only);
  EXPECT_EQ(static_cast<double>(traffic(compile(input)).nvme_read), without);
  input.settings.keep_at_turn = 1;
  EXPECT_EQ(static_cast<double>(traffic(compile(input)).nvme_read), without - 2 * n.last_block);
  input.settings.keep_at_turn = 4;
  EXPECT_EQ(static_cast<double>(traffic(compile(input)).nvme_read), without - 2 * n.blocks);
  EXPECT_EQ(static_cast<double>(traffic(compile(input)).nvme_write), 12 * n.all());
}

// The second pass over a table in slices reads its weights again, and none stay at the turn.
TEST(Traffic, ATableInSlicesIsReadTwiceByItsHead) {
  const Row& row = kRows[0];
  for (const bool tied : {true, false}) {
    const model::ModelSpec spec = spec_for(row, tied);
    const auto table = static_cast<double>(spec.pieces[spec.stages.back().pieces[1]].elements);
    plan::CompileInput input = nvme_input(spec, row.format, 4, 4);
    const plan::TrafficForecast at_once = traffic(compile(input));
    input.settings.slice_rows = 512;
    const plan::TrafficForecast in_slices = traffic(compile(input));
    EXPECT_EQ(static_cast<double>(in_slices.nvme_read - at_once.nvme_read),
              2 * table * (tied ? 1 : 2));
    EXPECT_EQ(in_slices.nvme_write, at_once.nvme_write);
  }
}

// Visiting per micro-batch reads the weights for forward and backward of every further micro-batch:
// 2 + 2 in bf16.
TEST(Traffic, EveryFurtherGroupReadsFourMore) {
  const Row& row = kRows[0];
  for (const int group : {1, 2, 3, 8}) {
    const model::ModelSpec spec = spec_for(row, true);
    const plan::TrafficForecast found = traffic(compile(nvme_input(spec, row.format, 8, group)));
    const Elements n = count(spec);
    const double further = (8 + group - 1) / group - 1;
    EXPECT_EQ(
        static_cast<double>(found.nvme_read),
        14 * n.all() - 2 * n.head_only + further * (4 * n.blocks + 2 * (n.table + n.head_only)))
        << "group " << group;
    EXPECT_EQ(static_cast<double>(found.nvme_write), 12 * n.all());
  }
}

TEST(Traffic, SpilledGradientsTakeFourMoreEachWay) {
  for (const Row& row : kRows) {
    for (const int micro_batches : {1, 8}) {
      const model::ModelSpec spec = spec_for(row, false);
      plan::CompileInput input = nvme_input(spec, row.format, micro_batches, micro_batches);
      const plan::TrafficForecast kept = traffic(compile(input));
      for (auto& placement : input.placement.pieces) placement.gradients = Tier::kNvme;
      const plan::TrafficForecast spilled = traffic(compile(input));
      const double all = count(spec).all();
      EXPECT_EQ(static_cast<double>(spilled.nvme_read - kept.nvme_read), 4 * all) << row.name;
      EXPECT_EQ(static_cast<double>(spilled.nvme_write - kept.nvme_write), 4 * all) << row.name;
    }
  }
}

// A tied table's gradient has two parts: the head's waits on NVMe until the lookup's is added.
TEST(Traffic, ATiedTablesSpilledGradientGoesTwice) {
  const model::ModelSpec spec = spec_for(kRows[0], true);
  plan::CompileInput input = nvme_input(spec, kRows[0].format, 2, 2);
  const plan::TrafficForecast kept = traffic(compile(input));
  for (auto& placement : input.placement.pieces) placement.gradients = Tier::kNvme;
  const plan::TrafficForecast spilled = traffic(compile(input));
  const Elements n = count(spec);
  EXPECT_EQ(static_cast<double>(spilled.nvme_read - kept.nvme_read), 4 * n.all() + 4 * n.table);
  EXPECT_EQ(static_cast<double>(spilled.nvme_write - kept.nvme_write), 4 * n.all() + 4 * n.table);
}

// bf16 gradients are half of that, to the host and to the drive; the sums that further groups go on
// with are not.
TEST(Traffic, Bf16GradientsTakeTwoMoreEachWay) {
  for (const bool tied : {true, false}) {
    for (const int group : {4, 2, 1}) {
      SCOPED_TRACE(str(tied ? "tied, " : "", "group ", group));
      const model::ModelSpec spec = spec_for(kRows[0], tied);
      plan::CompileInput input = nvme_input(spec, kRows[0].format, 4, group);
      const plan::TrafficForecast fp32 = traffic(compile(input));
      input.gradient_type = model::DType::kBFloat16;
      const plan::TrafficForecast kept = traffic(compile(input));
      for (auto& placement : input.placement.pieces) placement.gradients = Tier::kNvme;
      const plan::TrafficForecast spilled = traffic(compile(input));
      const Elements n = count(spec);
      // A table that is only looked up has no sums: its gradient is made from its rows.
      const double table = static_cast<double>(spec.pieces[spec.stages[0].pieces[0]].elements);
      const double summed = n.all() - (tied ? 0 : table);
      const double further = 4 / group - 1;
      EXPECT_EQ(static_cast<double>(fp32.device_to_host - kept.device_to_host), 2 * summed);
      EXPECT_EQ(kept.host_to_device, fp32.host_to_device);
      EXPECT_EQ(kept.nvme_read, fp32.nvme_read);
      EXPECT_EQ(kept.nvme_write, fp32.nvme_write);
      const double more = 2 * n.all() + (tied ? 2 * table : 0) + 4 * further * summed;
      EXPECT_EQ(static_cast<double>(spilled.nvme_read - kept.nvme_read), more);
      EXPECT_EQ(static_cast<double>(spilled.nvme_write - kept.nvme_write), more);
    }
  }
}

TEST(Traffic, StageInputsOnNvmeAreCounted) {
  const Row& row = kRows[0];
  const model::ModelSpec spec = spec_for(row, true);
  plan::CompileInput input = nvme_input(spec, row.format, 3, 3);
  const plan::TrafficForecast without = traffic(compile(input));
  input.placement.activations = Tier::kNvme;
  const plan::TrafficForecast with = traffic(compile(input));
  const Bytes one = 4096;  // 8 positions of width 24 in bf16, as transferred
  const Bytes layers = 4, micro_batches = 3;
  // Rows come from the host. Forward writes each block's output and reads it into the next block;
  // backward reads it again and passes its gradient on.
  EXPECT_EQ(with.nvme_read - without.nvme_read, micro_batches * one * (3 * layers - 1));
  EXPECT_EQ(with.nvme_write - without.nvme_write, micro_batches * one * 2 * layers);
}

TEST(Traffic, NothingOnNvmeMovesNothing) {
  const model::ModelSpec spec = spec_for(kRows[0], true);
  plan::CompileInput input = nvme_input(spec, kRows[0].format, 2, 1);
  for (auto& placement : input.placement.pieces)
    placement = {Tier::kHost, Tier::kHost, Tier::kHost};
  const plan::TrafficForecast found = traffic(compile(input));
  EXPECT_EQ(found.nvme_read, 0u);
  EXPECT_EQ(found.nvme_write, 0u);
  EXPECT_GT(found.host_to_device, 0u);
}

// What is frozen is read where it is needed and never written.
TEST(Traffic, FrozenPiecesAreOnlyRead) {
  const Row& row = kRows[0];
  model::ModelSpec spec = spec_for(row, true);
  const plan::TrafficForecast all = traffic(compile(nvme_input(spec, row.format, 2, 2)));
  double frozen = 0;
  for (model::PieceSpec& piece : spec.pieces) {
    if (piece.name != "layer2") continue;
    piece.trainable = false;
    frozen = static_cast<double>(piece.elements);
  }
  const plan::TrafficForecast some = traffic(compile(nvme_input(spec, row.format, 2, 2)));
  EXPECT_EQ(static_cast<double>(all.nvme_read - some.nvme_read), (14 - 4) * frozen);
  EXPECT_EQ(static_cast<double>(all.nvme_write - some.nvme_write), 12 * frozen);
}

// An update during backward is handed the weights of the visit, and the next forward reads what it
// wrote: the same bytes as the other way round. A separate master, though, makes the weight, which
// then need not be read for the update: here it is read twice for the visits.
TEST(Traffic, EarlyUpdatesMoveTheSameBytes) {
  const model::ModelSpec spec = testing::small_spec({.layers = 6, .tied = true});
  for (const Row& row : kRows) {
    plan::CompileInput input = nvme_input(spec, row.format, 2, 2);
    input.settings.early_updates = 3;
    const plan::ProgramSet set = compile(input);
    const plan::TrafficForecast plain = traffic(set), early = traffic(set, plan::Cycle::kEarly);
    Bytes updated_early = 0;
    for (const plan::Op& op : set.program(plan::Segment::kBackwardEarly).ops) {
      if (op.kind == plan::OpKind::kUpdate) updated_early += static_cast<Bytes>(op.count);
    }
    EXPECT_GT(updated_early, 0u) << row.name;
    EXPECT_EQ(early.nvme_write, plain.nvme_write) << row.name;
    const bool separate = row.format.master == MasterWeights::kFp32 && row.weight == 2;
    EXPECT_EQ(early.nvme_read, plain.nvme_read + (separate ? 2 * updated_early : 0)) << row.name;
  }
}

}  // namespace
}  // namespace zinf
