#include "engine/plan/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/plan/random_input.h"

namespace zinf {
namespace {

using plan::Lane;
using plan::Op;
using plan::OpKind;
using plan::Segment;

constexpr double kOverhead = 20e-6;  // of every op
constexpr double kNear = 1e-9;

// One lookup, one block, one head; a second of forward is 2, backward 3.
struct ByHand {
  model::ModelSpec spec = testing::small_spec({.layers = 1});
  plan::CompileInput input;
  plan::ProgramSet set;
  plan::Hardware hardware;

  ByHand() {
    input.model = &spec;
    for (int s = 0; s < plan::kSegments; ++s) set.programs[s].segment = static_cast<Segment>(s);
    set.buffers.push_back({"anything", plan::Arena::kHost, 1u << 31, 0, true});
    set.extents.push_back({});
    hardware.host_to_device = hardware.device_to_host = 1e9;
    hardware.nvme_read = hardware.nvme_write = hardware.nvme_mixed = 1e9;
    hardware.optimizer_bytes_per_second = 1e9;
    hardware.stages.assign(spec.stages.size(), {2.0, 3.0, 3.0, 1.0});
  }

  std::vector<Op>& ops(Segment segment) { return set.programs[static_cast<int>(segment)].ops; }

  Op transfer(OpKind kind, Bytes bytes, std::vector<int> after) {
    Op op;
    op.kind = kind;
    op.lane = kind == OpKind::kRead    ? Lane::kRead
              : kind == OpKind::kWrite ? Lane::kWrite
                                       : Lane::kOptimizer;
    op.operands.push_back({plan::Role::kGradient, 0, 0, 0, bytes, false});
    if (kind != OpKind::kNorm) op.extents.push_back({0, 0, bytes});
    op.after = std::move(after);
    return op;
  }

  Op compute(int stage, model::CallMode mode, std::vector<int> after) {
    Op op;
    op.stage = stage;
    op.mode = mode;
    op.after = std::move(after);
    return op;
  }
};

TEST(Simulate, AChainIsTheSumOfItsOps) {
  ByHand by_hand;
  by_hand.ops(Segment::kForward) = {by_hand.compute(1, model::CallMode::kForward, {})};
  by_hand.ops(Segment::kBackward) = {by_hand.compute(1, model::CallMode::kBackward, {})};
  by_hand.ops(Segment::kUpdateForward) = {
      by_hand.transfer(OpKind::kRead, 1'000'000'000, {}),
      by_hand.transfer(OpKind::kUpdate, 500'000'000, {0}),
      by_hand.compute(1, model::CallMode::kForward, {1}),
  };
  const plan::Forecast forecast = simulate(by_hand.set, by_hand.input, by_hand.hardware);
  EXPECT_NEAR(forecast.first_step_seconds, 5 + 2 * kOverhead, kNear);
  EXPECT_NEAR(forecast.step_seconds, 1 + 0.5 + 2 + 3 + 4 * kOverhead, kNear);
  EXPECT_NEAR(forecast.exposed_optimizer_seconds, 1.5 + 2 * kOverhead, kNear);
  EXPECT_NEAR(forecast.ideal_seconds, 2 + 3 + 2 * kOverhead, kNear);
  EXPECT_EQ(forecast.bottleneck, Lane::kCompute);
  EXPECT_EQ(forecast.lanes[static_cast<int>(Lane::kRead)].bytes, 1'000'000'000u);
  EXPECT_NEAR(forecast.lanes[static_cast<int>(Lane::kCompute)].busy_seconds, 5 + 2 * kOverhead,
              kNear);
}

TEST(Simulate, LanesRunBesideEachOtherAndIssueInOrder) {
  ByHand by_hand;
  by_hand.ops(Segment::kBackward) = {by_hand.compute(1, model::CallMode::kBackward, {})};
  // Reads of 1 s each, updates of 0.5 s after them: the second update ends at 2.5; forward waits
  // for both.
  by_hand.ops(Segment::kUpdateForward) = {
      by_hand.transfer(OpKind::kRead, 1'000'000'000, {}),
      by_hand.transfer(OpKind::kNorm, 500'000'000, {0}),
      by_hand.transfer(OpKind::kRead, 1'000'000'000, {}),
      by_hand.transfer(OpKind::kNorm, 500'000'000, {2}),
      by_hand.compute(1, model::CallMode::kForward, {1, 3}),
  };
  const plan::Forecast forecast = simulate(by_hand.set, by_hand.input, by_hand.hardware);
  EXPECT_NEAR(forecast.step_seconds, 2.5 + 2 + 3 + 5 * kOverhead, kNear);
}

// Compute that reads its weight behind an optimizer's state stands still for the state's read, not
// for its own; a decision behind an early update stands still for the update.
TEST(Simulate, TheOptimizerIsExposedInQueuesToo) {
  ByHand by_hand;
  constexpr int kWeight = 0, kMoment = 1;
  by_hand.set.extents = {{plan::ExtentKind::kState, 1, 0}, {plan::ExtentKind::kState, 1, 1}};
  const auto read = [&](int extent) {
    Op op = by_hand.transfer(OpKind::kRead, 1'000'000'000, {});
    op.extents[0].extent = extent;
    return op;
  };
  by_hand.ops(Segment::kBackward) = {by_hand.compute(1, model::CallMode::kBackward, {})};
  by_hand.ops(Segment::kUpdateForward) = {read(kMoment), read(kWeight),
                                          by_hand.compute(1, model::CallMode::kForward, {1})};
  plan::Forecast forecast = simulate(by_hand.set, by_hand.input, by_hand.hardware);
  EXPECT_NEAR(forecast.exposed_optimizer_seconds, 1 + kOverhead, kNear);
  std::swap(by_hand.ops(Segment::kUpdateForward)[0], by_hand.ops(Segment::kUpdateForward)[1]);
  by_hand.ops(Segment::kUpdateForward)[2].after = {0};
  forecast = simulate(by_hand.set, by_hand.input, by_hand.hardware);
  EXPECT_NEAR(forecast.exposed_optimizer_seconds, 0, kNear);

  by_hand.ops(Segment::kRestForward) = {by_hand.compute(1, model::CallMode::kForward, {})};
  by_hand.ops(Segment::kBackwardEarly) = {by_hand.compute(1, model::CallMode::kBackward, {}),
                                          by_hand.transfer(OpKind::kUpdate, 4'000'000'000, {0}),
                                          by_hand.transfer(OpKind::kNorm, 500'000'000, {0})};
  forecast = simulate(by_hand.set, by_hand.input, by_hand.hardware, plan::Cycle::kEarly);
  EXPECT_NEAR(forecast.step_seconds, 2 + 3 + 4 + 0.5 + 4 * kOverhead, kNear);
  EXPECT_NEAR(forecast.exposed_optimizer_seconds, 4 + kOverhead, kNear);
}

TEST(Simulate, ReadsAndWritesShareTheDrive) {
  ByHand by_hand;
  by_hand.ops(Segment::kBackward) = {by_hand.compute(1, model::CallMode::kBackward, {})};
  by_hand.ops(Segment::kUpdateForward) = {
      by_hand.transfer(OpKind::kRead, 1'000'000'000, {}),
      by_hand.transfer(OpKind::kWrite, 1'000'000'000, {}),
      by_hand.transfer(OpKind::kNorm, 1000, {0, 1}),
      by_hand.compute(1, model::CallMode::kForward, {2}),
  };
  // 1 GB/s for both together: each takes 2 s beside the other.
  plan::Forecast forecast = simulate(by_hand.set, by_hand.input, by_hand.hardware);
  EXPECT_NEAR(forecast.step_seconds, 2 + 2 + 3 + 4 * kOverhead + 1e-6, kNear);
  by_hand.hardware.nvme_mixed = 2e9;
  forecast = simulate(by_hand.set, by_hand.input, by_hand.hardware);
  EXPECT_NEAR(forecast.step_seconds, 1 + 2 + 3 + 4 * kOverhead + 1e-6, kNear);
}

// The next step's decisions wait for every update, also for one that nothing in the step waits for.
TEST(Simulate, AStepEndsWithItsLastUpdate) {
  ByHand by_hand;
  by_hand.ops(Segment::kBackward) = {by_hand.compute(1, model::CallMode::kBackward, {})};
  by_hand.ops(Segment::kUpdateForward) = {by_hand.transfer(OpKind::kNorm, 9'000'000'000, {})};
  const plan::Forecast forecast = simulate(by_hand.set, by_hand.input, by_hand.hardware);
  EXPECT_NEAR(forecast.step_seconds, 9 + kOverhead, kNear);
}

TEST(Simulate, LinksCarryWaitsAcrossTheBorder) {
  ByHand by_hand;
  by_hand.ops(Segment::kBackward) = {by_hand.compute(1, model::CallMode::kBackward, {}),
                                     by_hand.transfer(OpKind::kWrite, 4'000'000'000, {0})};
  by_hand.ops(Segment::kUpdateForward) = {by_hand.compute(1, model::CallMode::kForward, {})};
  plan::Forecast forecast = simulate(by_hand.set, by_hand.input, by_hand.hardware);
  EXPECT_NEAR(forecast.step_seconds, 5 + 2 * kOverhead,
              kNear);  // the write of 4 s is not waited for
  by_hand.set.links[static_cast<int>(Segment::kBackward)]
                   [static_cast<int>(Segment::kUpdateForward)] = {{0, 1}};
  forecast = simulate(by_hand.set, by_hand.input, by_hand.hardware);
  EXPECT_NEAR(forecast.step_seconds, 3 + 4 + 2 + 3 * kOverhead, kNear);
}

// Faster hardware never makes a step slower, and the ideal is never beaten.
// BR-015: 100 M parameters in 8 layers, optimizer on NVMe: reads, updates and writes overlap, so a
// step takes at most 0.75 of one op after the other, and moves 12 bytes each way a parameter.
TEST(Simulate, PipelinedUpdatesHideReadsAndWrites) {
  constexpr double kParameters = 100e6;
  const model::ModelSpec spec = testing::small_spec(
      {.layers = 8, .layer_elements = 12'500'000, .type = model::DType::kBFloat16});
  plan::CompileInput input;
  input.model = &spec;
  input.states = testing::layouts({.weight = optim::WeightDtype::kBf16});
  input.shape = {1, 8};
  input.workspace.assign(spec.stages.size(), {});
  input.placement.pieces.assign(spec.pieces.size(),
                                {plan::Tier::kHost, plan::Tier::kNvme, plan::Tier::kHost});
  input.settings.chunk_elements = 64 * model::kTile;
  plan::Hardware hardware;
  hardware.flops_per_second = hardware.host_to_device = hardware.device_to_host = 1e12;
  hardware.nvme_read = hardware.nvme_write = hardware.nvme_mixed = 1e9;
  hardware.optimizer_bytes_per_second = 1.5e9;
  const auto forecast = [&](bool overlap) {
    input.settings.overlap = overlap;
    return simulate(compile(input), input, hardware);
  };
  const plan::Forecast pipelined = forecast(true), serial = forecast(false);
  const auto lane = [&](Lane which) { return serial.lanes[static_cast<std::size_t>(which)]; };
  const double drive = lane(Lane::kRead).busy_seconds + lane(Lane::kWrite).busy_seconds;
  const double update = lane(Lane::kOptimizer).busy_seconds;
  EXPECT_LT(std::max(drive, update), 2 * std::min(drive, update));
  EXPECT_LT(pipelined.step_seconds, 0.75 * serial.step_seconds);
  EXPECT_NEAR(static_cast<double>(lane(Lane::kRead).bytes), 12 * kParameters, kParameters / 10);
  EXPECT_NEAR(static_cast<double>(lane(Lane::kWrite).bytes), 12 * kParameters, kParameters / 10);
}

TEST(Simulate, IsMonotonicInEveryRate) {
  using Rate = double plan::Hardware::*;
  const Rate rates[] = {&plan::Hardware::flops_per_second,
                        &plan::Hardware::host_to_device,
                        &plan::Hardware::device_to_host,
                        &plan::Hardware::nvme_read,
                        &plan::Hardware::nvme_write,
                        &plan::Hardware::nvme_mixed,
                        &plan::Hardware::optimizer_bytes_per_second};
  for (int seed = 0; seed < 60; ++seed) {
    testing::Draw draw(static_cast<std::uint64_t>(seed));
    testing::RandomInput drawn = testing::draw_input(draw);
    for (model::StageSpec& stage : drawn.spec->stages) stage.forward_flops_per_position = 1e4;
    const plan::ProgramSet set = compile(drawn.input);
    plan::Hardware hardware;
    for (const Rate rate : rates) hardware.*rate = 1e7 * (1 + draw.below(100));
    const plan::Forecast before = simulate(set, drawn.input, hardware);
    EXPECT_GE(before.step_seconds * (1 + 1e-9), before.ideal_seconds) << "seed " << seed;
    EXPECT_GT(before.step_seconds, 0);
    for (const Rate rate : rates) {
      plan::Hardware faster = hardware;
      faster.*rate *= 1.5;
      EXPECT_LE(simulate(set, drawn.input, faster).step_seconds, before.step_seconds * (1 + 1e-9))
          << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace zinf
