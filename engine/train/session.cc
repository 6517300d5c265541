#include "engine/train/session.h"

#include <algorithm>
#include <vector>

namespace zinf::train {

Session::Session(const SessionParts& parts) : plan_(*parts.plan) {
  const plan::Plan& plan = plan_;
  swap::TierOptions tiers;
  tiers.device_arena = plan.device_bytes;
  tiers.host_arena = plan.host_arena_bytes;
  tiers.device_budget = plan.budgets.device;
  tiers.host_budget = plan.budgets.host;
  tiers.host_base = plan.budgets.host_base + (plan.budgets.device_in_host ? plan.device_bytes : 0);
  for (const plan::Extent& extent : plan.programs.extents) {
    if (!parts.state_on_disk) break;
    tiers.extents.push_back(
        {extent.bytes, extent.slots, extent.kind != plan::ExtentKind::kState, extent.page_bytes});
  }
  tiers.nvme = parts.store;
  tiers.open_mode = parts.open_mode;
  tiers.scratch_ending = parts.scratch_ending;
  tiers.verify = parts.verify;
  tiers.pin = plan.pinned_bytes > 0;
  // Near the threads that will work on it.
  tiers.place_host = [&](std::byte* arena) {
    for (const plan::HostRange& range : plan::updated_in_host(plan.programs))
      parts.pool->place(arena + range.offset, range.bytes);
  };
  tiers_ = std::make_unique<swap::Tiers>(tiers);

  step::RunnerParts runner;
  runner.programs = &plan.programs;
  runner.model = plan.model.get();
  runner.compute = parts.compute;
  runner.optimizer = parts.optimizer;
  runner.pool = parts.pool;
  runner.group_ranges = parts.group_ranges;
  runner.groups = parts.groups;
  runner.device_arena = tiers_->device_arena();
  runner.host_arena = tiers_->host_arena();
  for (const plan::StateLayout& state : plan.input.states)
    runner.starts_zero.push_back(state.starts_zero);
  runner_ = std::make_unique<step::OpRunner>(std::move(runner));
  executor_ = std::make_unique<step::Executor>(plan.programs, *tiers_, *runner_, parts.executor);
  states_ = std::make_unique<step::StateAccess>(plan.programs, plan.input,
                                                parts.optimizer->format(), *tiers_);
  trainer_ = std::make_unique<step::Trainer>(*executor_, *runner_, *parts.compute, parts.trainer);
}

void Session::load(const model::WeightSource& weights) {
  std::vector<float> master(static_cast<std::size_t>(step::StateAccess::kElements));
  for (std::size_t p = 0; p < plan_.model->pieces.size(); ++p) {
    const model::PieceSpec& piece = plan_.model->pieces[p];
    for (std::int64_t first = 0; first < piece.elements; first += step::StateAccess::kElements) {
      const std::int64_t count = std::min(step::StateAccess::kElements, piece.elements - first);
      weights.read_piece(piece, first, count, master.data());
      states_->store_master(static_cast<int>(p), trainer_->slot(), first, count, master.data());
    }
  }
}

namespace {
// Without clipping an early update is dropped only by a gradient that is not finite.
step::Speculate speculate(const config::RunConfig& config) {
  if (config.step.speculate == config::Speculate::kNever) return step::Speculate::kNever;
  const bool always =
      config.gradient_clipping <= 0 || config.step.speculate == config::Speculate::kAlways;
  return always ? step::Speculate::kAlways : step::Speculate::kRarely;
}
}  // namespace

step::Trainer::Options trainer_options(const config::RunConfig& config, const plan::Plan& plan) {
  step::Trainer::Options options;
  options.max_norm = config.gradient_clipping;
  options.seed = static_cast<std::uint64_t>(config.train.seed);
  options.slots = plan.input.settings.slots;
  options.commits_in_program = plan.input.settings.commit_each_step;
  options.speculate = speculate(config);
  return options;
}

}  // namespace zinf::train
