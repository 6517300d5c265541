#include "engine/plan/planner.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/plan/explain.h"
#include "tests/plan/plan_requests.h"

namespace zinf {
namespace {

using plan::EarlyUpdates;
using plan::Plan;
using plan::PlanRequest;
using plan::Tier;
using testing::kPlenty;
using testing::kSplit;
using testing::refusal;
using testing::request_for;

int count(const Plan& plan, Tier plan::PiecePlacement::*what, Tier tier) {
  int sum = 0;
  for (const plan::PiecePlacement& placement : plan.input.placement.pieces)
    sum += placement.*what == tier;
  return sum;
}

TEST(Planner, PlansStayInsideTheirBudgets) {
  PlanRequest request = request_for(4, 1 << 18);
  for (const Bytes host : {108 * kMiB, 112 * kMiB, 130 * kMiB}) {
    request.budgets.host = host;
    request.budgets.device = host / 16;
    const Plan plan = make_plan(request);
    EXPECT_LE(plan.host_bytes, host);
    EXPECT_LE(plan.device_bytes, host / 16);
    EXPECT_EQ(plan.host_bytes, 100 * kMiB + plan.device_bytes + plan.host_arena_bytes);
    Bytes nvme = 0;
    for (const plan::Extent& extent : plan.programs.extents)
      nvme += round_up(extent.bytes, 4096) * extent.slots;
    EXPECT_EQ(plan.nvme_bytes, nvme);
  }
}

// All that updates work on, and nothing of the device's arena: fp32 weight, moments and gradient of
// every parameter where they wait in memory.
TEST(Planner, KnowsWhatUpdatesWorkOn) {
  PlanRequest request = request_for(4, 1 << 18, optim::Format{});
  request.pins.weights = request.pins.optimizer = request.pins.gradients = Tier::kHost;
  const Plan plan = make_plan(request);
  std::vector<char> page(plan.host_arena_bytes / 4096 + 1);
  for (const plan::HostRange& range : plan::updated_in_host(plan.programs)) {
    ASSERT_LE(range.offset + range.bytes, plan.host_arena_bytes);
    for (Bytes at = range.offset; at < range.offset + range.bytes; at += 4096) page[at / 4096] = 1;
  }
  Bytes elements = 0;
  for (const model::PieceSpec& piece : plan.model->pieces)
    elements += static_cast<Bytes>(piece.elements);
  const Bytes found = static_cast<Bytes>(std::count(page.begin(), page.end(), 1)) * 4096;
  EXPECT_GE(found, 16 * elements);
  EXPECT_LE(found, plan.host_arena_bytes);
}

// Pinned bytes are part of host, on a line of their own.
TEST(Planner, TellsWhatWillBePinned) {
  PlanRequest request = request_for(4, 1 << 18);
  const Plan plan = make_plan(request);
  EXPECT_EQ(plan.pinned_bytes, 0u);
  EXPECT_NE(explain(plan).find("\n  pinned            0 B (no page is locked)\n"),
            std::string::npos)
      << explain(plan);
  request.pin = true;
  const Plan pinning = make_plan(request);
  EXPECT_GT(pinning.host_arena_bytes, 0u);
  EXPECT_EQ(pinning.pinned_bytes, pinning.host_arena_bytes);
  EXPECT_EQ(pinning.host_bytes, plan.host_bytes);
  EXPECT_NE(explain_json(pinning).find(str("\"pinned_bytes\": ", pinning.host_arena_bytes)),
            std::string::npos);
  EXPECT_NE(explain(pinning).find(format_bytes(pinning.pinned_bytes) + " of host, as far as"),
            std::string::npos);
}

// A device that can't hold the head's table gets it in slices; one that can, whole.
TEST(Planner, ATableThatDoesNotFitComesInSlices) {
  PlanRequest request = request_for(2, 1 << 16);
  request.model = testing::small_spec(
      {.layers = 2, .width = 64, .layer_elements = 1 << 16, .vocabulary = 100000});
  request.workspace.assign(request.model.stages.size(),
                           {100000, 300000, 200000, 0, 0, 0, 1000, 2000});
  request.pins.slice_rows = 0;
  request.budgets.device = kMiB;
  const auto refused = refusal(request);
  ASSERT_TRUE(refused);
  request.pins.slice_rows.reset();
  request.budgets.device = 4 * refused->device;
  EXPECT_EQ(make_plan(request).input.settings.slice_rows, 0);
  request.budgets.device = refused->device - 4096;
  const Plan plan = make_plan(request);
  EXPECT_EQ(plan.input.settings.slice_rows, model::head_rows_per_slice(64));
  EXPECT_LE(plan.device_bytes, request.budgets.device);
  EXPECT_NE(plan::describe(plan.input).find("table in slices of"), std::string::npos);
}

// Between all and none: those of the last layers, as far as memory is left for them.
TEST(Planner, WhatIsLeftKeepsActivations) {
  PlanRequest request = request_for(8, 1 << 16);
  const int stages = static_cast<int>(request.model.stages.size());
  request.budgets.device_in_host = false;
  request.hardware = {"given", 1e6, 1e15, 1e15, 1e15, 1e15, 1e15, 1e15, {}};  // compute decides
  request.pins.group = request.micro_batches;  // in smaller groups all would fit sooner
  request.pins.prefetch = 1;
  const Bytes kept = 64 << 10;
  for (int stage = 1; stage + 1 < stages; ++stage) request.workspace[stage].kept = kept;
  PlanRequest pinned = request;
  pinned.pins.recompute = true;
  pinned.budgets.device = kPlenty;
  const Bytes none = make_plan(pinned).device_bytes;
  double before = make_plan(pinned).forecast.step_seconds;
  for (const Bytes stages_more : {1, 3, 6}) {
    SCOPED_TRACE(stages_more);
    request.budgets.device = none + stages_more * kept * request.micro_batches;
    const Plan plan = make_plan(request);
    EXPECT_EQ(plan.input.settings.kept_stages, static_cast<int>(stages_more));
    EXPECT_LE(plan.device_bytes, request.budgets.device);
    EXPECT_LT(plan.forecast.step_seconds, before);
    EXPECT_NE(plan::describe(plan.input).find(str("kept activations: ", stages_more, " of 8")),
              std::string::npos)
        << plan::describe(plan.input);
    before = plan.forecast.step_seconds;
    pinned.budgets.device = request.budgets.device;
    EXPECT_EQ(make_plan(pinned).input.settings.kept_stages, 0);
  }
  // A group's activations have gone when the next one's come.
  request.pins.group = pinned.pins.group = 1;
  pinned.budgets.device = kPlenty;
  request.budgets.device = make_plan(pinned).device_bytes + 3 * kept;
  EXPECT_EQ(make_plan(request).input.settings.kept_stages, 3);
  // Stages below everything that is trained need no backward pass.
  for (int stage = 0; stage < stages - 3; ++stage) {
    for (const int piece : request.model.stages[stage].pieces)
      request.model.pieces[piece].trainable = false;
  }
  pinned.model = request.model;
  request.budgets.device = make_plan(pinned).device_bytes + kept;
  const Plan plan = make_plan(request);
  EXPECT_NE(plan::describe(plan.input).find("kept activations: 1 of 2"), std::string::npos)
      << plan::describe(plan.input);
}

PlanRequest one_rung(PlanRequest request) {
  request.pins.prefetch = 1;
  request.pins.ring_slots = 4;
  request.pins.chunk_elements = 1 << 16;
  request.pins.group = request.micro_batches;
  request.pins.activations = Tier::kDevice;
  request.pins.recompute = true;
  request.pins.keep_at_turn = 0;
  return request;
}

TEST(Planner, GradientsSpillWhenTheHostFallsJustBelow) {
  for (const int layers : {6, 40}) {
    SCOPED_TRACE(layers);
    PlanRequest request = one_rung(request_for(layers, 1 << 16));
    request.budgets.host = 101 * kMiB;
    request.pins.gradients = Tier::kHost;
    const auto pinned = refusal(request);
    ASSERT_TRUE(pinned);
    // It names what would do: not what is too little with any placement.
    EXPECT_EQ(pinned->text.find("placement=auto"), std::string::npos);
    request.budgets.host = pinned->host - 4096;
    EXPECT_NE(refusal(request)->text.find("placement=auto"), std::string::npos);

    request.pins.gradients.reset();
    request.budgets.host = pinned->host;
    Plan plan = make_plan(request);
    EXPECT_EQ(count(plan, &plan::PiecePlacement::gradients, Tier::kNvme), 0);
    EXPECT_TRUE(plan.notes.empty());

    request.budgets.host = pinned->host - 4096;
    plan = make_plan(request);
    EXPECT_GT(count(plan, &plan::PiecePlacement::gradients, Tier::kNvme), 0);
    EXPECT_LT(count(plan, &plan::PiecePlacement::gradients, Tier::kNvme), layers);
    EXPECT_LE(plan.host_bytes, request.budgets.host);
    ASSERT_EQ(plan.notes.size(), 1u);
    EXPECT_NE(plan.notes[0].find("spill to NVMe"), std::string::npos);
    EXPECT_NE(explain(plan).find(plan.notes[0]), std::string::npos);
    // Less and less, down to the least that is refused with all gradients on NVMe.
    for (Bytes host = pinned->host; host > 101 * kMiB; host -= kMiB) {
      request.budgets.host = host;
      if (fits(request)) continue;
      const auto refused = refusal(request);
      ASSERT_TRUE(refused);
      request.budgets.host = refused->host;
      EXPECT_FALSE(refusal(request)) << refused->text;
      break;
    }
  }
}

TEST(Planner, LeftoverHostMemoryIsUsed) {
  PlanRequest request = one_rung(request_for(6, 1 << 18));
  request.budgets.host = 101 * kMiB;
  request.pins.gradients = Tier::kHost;
  const Bytes least = refusal(request)->host;
  request.budgets.host = least;
  const Plan lean = make_plan(request);
  EXPECT_EQ(count(lean, &plan::PiecePlacement::weights, Tier::kHost), 0);
  EXPECT_TRUE(lean.all_on_nvme);
  EXPECT_TRUE(lean.input.settings.commit_each_step);

  // Room for one layer's weight and no more: 2 bytes in memory save 2 + 2 read and 2 written.
  const Bytes weight = round_up(Bytes{2} * lean.model->pieces[1].elements, 4096);
  request.budgets.host = least + weight;
  const Plan one = make_plan(request);
  EXPECT_GE(count(one, &plan::PiecePlacement::weights, Tier::kHost), 1);
  EXPECT_LT(one.traffic.nvme_read + one.traffic.nvme_write,
            lean.traffic.nvme_read + lean.traffic.nvme_write);

  Bytes before = lean.traffic.nvme_read + lean.traffic.nvme_write;
  for (Bytes host = least; host < least + 24 * kMiB; host += kMiB + 4096) {
    request.budgets.host = host;
    const Plan plan = make_plan(request);
    const Bytes moved = plan.traffic.nvme_read + plan.traffic.nvme_write;
    EXPECT_LE(moved, before) << "host " << host << ": " << describe(plan.input);
    before = moved;
  }
  request.budgets.host = kPlenty;
  const Plan all = make_plan(request);
  EXPECT_EQ(all.traffic.nvme_read + all.traffic.nvme_write, 0u);
  EXPECT_FALSE(all.all_on_nvme);
}

TEST(Planner, PinsAreRespected) {
  for (const Tier weights : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
    for (const Tier optimizer : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
      for (const Tier gradients : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
        PlanRequest request = request_for(2, 1 << 16);
        request.pins = {weights, optimizer, gradients, Tier::kHost, 2, true, {}, {}, {}, {}};
        const Plan plan = make_plan(request);
        for (const plan::PiecePlacement& placement : plan.input.placement.pieces) {
          EXPECT_EQ(placement.weights, weights);
          EXPECT_EQ(placement.optimizer, optimizer);
          EXPECT_EQ(placement.gradients, gradients);
        }
        EXPECT_EQ(plan.input.placement.activations, Tier::kHost);
        EXPECT_EQ(plan.input.settings.group, 2);
        EXPECT_EQ(plan.input.settings.kept_stages, 0);
      }
    }
  }
}

// Nothing but the drive's bytes tells these candidates apart: the one that writes least is taken.
TEST(Planner, TiesGoToFewerBytesWritten) {
  PlanRequest request = request_for(3, 1 << 18);
  request.hardware = {"given", 1e6, 1e15, 1e15, 1e15, 1e15, 1e15, 1e15, {}};  // compute decides
  request.pins.weights = request.pins.optimizer = Tier::kNvme;
  const Plan plan = make_plan(request);
  EXPECT_NE(plan.input.placement.activations, Tier::kNvme);
  EXPECT_EQ(
      plan.traffic.nvme_write,
      12 * static_cast<Bytes>(plan.model->pieces[0].elements + plan.model->pieces[1].elements +
                              plan.model->pieces[2].elements + plan.model->pieces[3].elements +
                              plan.model->pieces[4].elements));
  EXPECT_FALSE(plan.rejected.empty());
}

// 8-bit moments have pages of their own size: a lean plan may not cut them elsewhere.
TEST(Planner, EightBitMomentsAreRefusedOrPlannedButNeverCutInsideAPage) {
  optim::Format format = kSplit;
  format.moments = optim::StateDtype::kInt8;
  PlanRequest request = request_for(3, 1 << 21, format);
  request.budgets.host = 101 * kMiB;
  const auto refused = refusal(request);
  ASSERT_TRUE(refused);
  request.budgets.host = refused->host;
  EXPECT_LE(make_plan(request).host_bytes, refused->host);
}

// What is read or written in part has no checksum to be compared with.
TEST(Planner, TransfersBeginAndEndWithPagesOfChecksums) {
  optim::Format narrow = kSplit, small = kSplit, rounded = kSplit;
  narrow.moments = optim::StateDtype::kBf16;
  small.moments = rounded.moments = optim::StateDtype::kInt8;
  rounded.master = optim::MasterWeights::kBf16Sr;
  for (const optim::Format& format : {optim::Format{}, kSplit, narrow, small, rounded}) {
    for (const plan::Tier gradients : {Tier::kHost, Tier::kNvme}) {
      PlanRequest request = request_for(2, 1 << 22, format);
      request.pins.weights = request.pins.optimizer = Tier::kNvme;
      request.pins.gradients = gradients;
      request.budgets.host = 101 * kMiB;
      const auto refused = refusal(request);
      ASSERT_TRUE(refused);
      for (const Bytes host : {kPlenty, refused->host}) {
        request.budgets.host = host;
        const Plan plan = make_plan(request);
        int transfers = 0;
        for (const plan::Program& program : plan.programs.programs) {
          for (const plan::Op& op : program.ops) {
            for (const plan::ExtentRange& range : op.extents) {
              const plan::Extent& extent = plan.programs.extents[range.extent];
              const Bytes end = range.offset + range.bytes;
              const bool whole = range.offset % extent.page_bytes == 0 &&
                                 (end % extent.page_bytes == 0 || end == extent.bytes);
              EXPECT_TRUE(whole) << plan::segment_name(program.segment) << ": "
                                 << plan::op_kind_name(op.kind) << " of piece " << op.piece
                                 << " at " << range.offset << ", " << range.bytes
                                 << " bytes, in pages of " << extent.page_bytes;
              ++transfers;
            }
          }
        }
        EXPECT_GT(transfers, 50);
      }
    }
  }
}

// BR-003: a tensor of 2^31 + 64 elements is 8,589,934,848 bytes of fp32, and nothing on the way is
// 32 bits.
TEST(Planner, TensorsBeyondTwoToTheThirtyOne) {
  constexpr std::int64_t kElements = (std::int64_t{1} << 31) + 64;
  model::ModelSpec spec = testing::small_spec(
      {.layers = 1, .layer_elements = kElements, .type = model::DType::kFloat32});
  const model::PieceSpec& piece = spec.pieces[1];
  EXPECT_EQ(static_cast<Bytes>(piece.tensors[0].elements) * 4, 8'589'934'848u);
  PlanRequest request = request_for(1, 9000, optim::Format{});
  request.model = spec;
  request.pins.weights = request.pins.optimizer = Tier::kNvme;
  const Plan plan = make_plan(request);
  const Bytes padded = round_up(8'589'934'848u + 37 * 4 + 192 * 4, 4096 * 4);
  Bytes largest = 0;
  for (const plan::Extent& extent : plan.programs.extents)
    largest = std::max(largest, extent.bytes);
  EXPECT_EQ(largest, padded);
  EXPECT_GT(plan.traffic.nvme_write, Bytes{12} * kElements);
  std::int64_t last = 0;
  for (const plan::Op& op : plan.programs.program(plan::Segment::kUpdateForward).ops) {
    if (op.kind == plan::OpKind::kUpdate && op.piece == 1)
      last = std::max(last, op.first + op.count);
  }
  EXPECT_EQ(last, piece.elements);
}

// Both halve, and so does what spills where neither fits.
TEST(Planner, Bf16GradientsTakeHalfTheMemory) {
  PlanRequest request = request_for(6, 1 << 18);
  request.pins.weights = request.pins.optimizer = Tier::kNvme;
  request.pins.group = request.micro_batches;
  Bytes gradients[2] = {}, host[2] = {};
  int spilled[2] = {};
  for (const bool bf16 : {false, true}) {
    request.gradient_type = bf16 ? model::DType::kBFloat16 : model::DType::kFloat32;
    request.budgets.host = kPlenty;
    const Plan roomy = make_plan(request);
    gradients[bf16] = roomy.programs.at_peak[static_cast<int>(plan::Arena::kHost)].at("gradients");
    host[bf16] = roomy.host_arena_bytes;
    EXPECT_EQ(explain(roomy).find("bf16 gradients") != std::string::npos, bf16);
    request.budgets.host = 100 * kMiB + 8 * kMiB;
    const Plan tight = make_plan(request);
    EXPECT_LE(tight.host_bytes, request.budgets.host);
    spilled[bf16] = count(tight, &plan::PiecePlacement::gradients, Tier::kNvme);
  }
  EXPECT_EQ(gradients[false], 2 * gradients[true]);
  EXPECT_EQ(host[false] - host[true], gradients[true]);
  EXPECT_GT(spilled[false], spilled[true]);
}

// Where the drive is the limit, levelling both halves of the step shortens it; a run that clips
// expects steps whose update waits.
TEST(Planner, UpdatesDuringBackwardWhereThatIsFaster) {
  PlanRequest request = request_for(6, 1 << 18);
  request.pins.weights = request.pins.optimizer = Tier::kNvme;
  const Plan calm = make_plan(request);
  ASSERT_GT(calm.input.settings.early_updates, 0);
  ASSERT_TRUE(calm.early);
  EXPECT_LT(calm.early->step_seconds, calm.waiting.step_seconds);
  EXPECT_EQ(calm.forecast.step_seconds, calm.early->step_seconds);
  request.clips = true;
  const Plan clipping = make_plan(request);
  EXPECT_EQ(clipping.forecast.step_seconds, clipping.waiting.step_seconds);
  EXPECT_TRUE(clipping.early);
  request.early_updates = EarlyUpdates::kNever;
  EXPECT_EQ(make_plan(request).input.settings.early_updates, 0);
  request.early_updates = EarlyUpdates::kAuto;
  request.slots = 1;  // nothing to fall back on
  EXPECT_EQ(explain(calm).find("checkpoint.slots: 1"), std::string::npos);
  EXPECT_NE(explain(make_plan(request)).find("checkpoint.slots: 1 keeps one copy of the state"),
            std::string::npos);
  EXPECT_NE(explain_json(make_plan(request)).find("\"checkpoint_slots\": 1"), std::string::npos);
  EXPECT_EQ(make_plan(request).input.settings.early_updates, 0);
  EXPECT_TRUE(make_plan(request).notes.empty());
}

// Compute so slow that the drive never matters: nothing is gained, and all the same they are there
// where they are a must.
TEST(Planner, UpdatesDuringBackwardWhereTheyAreAMust) {
  PlanRequest request = request_for(6, 1 << 18);
  request.pins.weights = request.pins.optimizer = Tier::kNvme;
  request.hardware.flops_per_second = 1;
  request.clips = true;
  EXPECT_EQ(make_plan(request).input.settings.early_updates, 0);
  request.early_updates = EarlyUpdates::kAlways;
  const Plan plan = make_plan(request);
  EXPECT_GT(plan.input.settings.early_updates, 0);
  EXPECT_FALSE(plan.programs.program(plan::Segment::kBackwardEarly).ops.empty());
  EXPECT_TRUE(plan.notes.empty());
  ASSERT_TRUE(plan.early);
  EXPECT_EQ(plan.forecast.step_seconds, plan.early->step_seconds);
}

TEST(Planner, SaysWhyNothingIsUpdatedDuringBackward) {
  const auto note_of = [](const PlanRequest& request) {
    const Plan plan = make_plan(request);
    EXPECT_EQ(plan.input.settings.early_updates, 0);
    EXPECT_NE(explain(plan).find("step.speculate: always has no effect"), std::string::npos);
    return plan.notes.empty() ? "" : plan.notes.front();
  };
  PlanRequest request = request_for(6, 1 << 18);
  request.early_updates = EarlyUpdates::kAlways;
  request.pins.weights = request.pins.optimizer = Tier::kHost;
  EXPECT_NE(note_of(request).find("states are in memory"), std::string::npos);
  request.pins.weights = request.pins.optimizer = Tier::kNvme;
  request.commit_each_step = false;
  EXPECT_NE(note_of(request).find("checkpoint.every"), std::string::npos);
  request.commit_each_step.reset();
  request.slots = 1;
  EXPECT_NE(note_of(request).find("checkpoint.slots: 1"), std::string::npos);
}

}  // namespace
}  // namespace zinf
