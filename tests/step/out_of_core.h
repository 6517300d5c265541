// Everything a test needs to run a model out of core on real lanes and files: plan, tiers,
// executor, trainer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/base/str.h"
#include "engine/plan/planner.h"
#include "engine/step/state_access.h"
#include "engine/step/trainer.h"
#include "tests/plan/random_input.h"
#include "tests/step/poison.h"

namespace zinf::testing {

// One decay group for norms and biases, one for the rest.
inline std::vector<std::vector<optim::GroupRange>> group_ranges(const model::ModelSpec& spec) {
  std::vector<std::vector<optim::GroupRange>> ranges;
  for (const model::PieceSpec& piece : spec.pieces) {
    std::vector<optim::GroupRange> of_piece;
    for (const model::TensorSpec& tensor : piece.tensors) {
      of_piece.push_back({tensor.offset, tensor.elements, tensor.norm_or_bias ? 1 : 0});
    }
    ranges.push_back(std::move(of_piece));
  }
  return ranges;
}

struct OutOfCoreOptions {
  std::string folder;
  step::ExecutorOptions executor;
  double max_norm = 0;
  int threads = 1;
  nvme::EngineKind engine = nvme::EngineKind::kAuto;
  nvme::EngineWrapper wrap_engine;  // faults, or a watch
  int depth = 32;                   // of the drive's lane
  Bytes block_size = kMiB;
  double stall_seconds = 120;
  double read_bytes_per_second = 0, write_bytes_per_second = 0,
         copy_bytes_per_second = 0;  // throttles; 0: none
  bool poison = true;                // buffers that have had their last user are overwritten
  nvme::OpenMode open_mode = nvme::OpenMode::kReplace;
  // Where the state is that the run starts from.
  std::int64_t version = 0;
  int slot = 0;
  bool moments_are_zero = true;
  step::Speculate speculate = step::Speculate::kAlways;
};

class OutOfCore {
 public:
  OutOfCore(const plan::CompileInput& input, plan::ProgramSet programs, model::Compute& compute,
            const optim::Optimizer& optimizer, OutOfCoreOptions options)
      : input_(input), programs_(std::move(programs)), pool_(options.threads) {
    tiers_ = std::make_unique<swap::Tiers>(tier_options(options));
    step::RunnerParts parts;
    parts.programs = &programs_;
    parts.model = input.model;
    parts.compute = &compute;
    parts.optimizer = &optimizer;
    parts.pool = &pool_;
    parts.group_ranges = group_ranges(*input.model);
    parts.groups = {{1.0, 0.1}, {1.0, 0.0}};
    parts.device_arena = tiers_->device_arena();
    parts.host_arena = tiers_->host_arena();
    for (const plan::StateLayout& state : input.states)
      parts.starts_zero.push_back(state.starts_zero);
    runner_ = std::make_unique<step::OpRunner>(std::move(parts));
    if (options.poison) {
      poison_ =
          std::make_unique<Poison>(programs_, input_, tiers_->device_arena(), tiers_->host_arena());
      options.executor.finished = [this](const plan::Op& op, plan::Segment segment) {
        poison_->finished(op, segment);
      };
    }
    executor_ = std::make_unique<step::Executor>(programs_, *tiers_, *runner_, options.executor);
    access_ = std::make_unique<step::StateAccess>(programs_, input_, optimizer.format(), *tiers_);
    step::Trainer::Options trainer;
    trainer.max_norm = options.max_norm;
    trainer.seed = kSeed;
    trainer.version = options.version;
    trainer.moments_are_zero = options.moments_are_zero;
    trainer.slots = input.settings.slots;
    trainer.slot = trainer.committed_slot = options.slot;
    trainer.commits_in_program = input.settings.commit_each_step;
    trainer.speculate = options.speculate;
    trainer_ = std::make_unique<step::Trainer>(*executor_, *runner_, compute, trainer);
  }

  static constexpr std::uint64_t kSeed = 5;

  step::Trainer& trainer() { return *trainer_; }
  step::StateAccess& access() { return *access_; }
  step::Executor& executor() { return *executor_; }
  step::OpRunner& runner() { return *runner_; }
  swap::Tiers& tiers() { return *tiers_; }
  const plan::ProgramSet& programs() const { return programs_; }
  step::StateAccess::Hashes hashes() {
    return access_->hashes(trainer_->version(), trainer_->slot(), trainer_->moments_are_zero());
  }

 private:
  swap::TierOptions tier_options(const OutOfCoreOptions& options) const {
    swap::TierOptions tiers;
    tiers.device_arena = tiers.device_budget = programs_.peak[0];
    tiers.host_arena = tiers.host_budget = programs_.peak[1];
    tiers.copy_bytes_per_second = options.copy_bytes_per_second;
    for (const plan::Extent& extent : programs_.extents) {
      tiers.extents.push_back(
          {extent.bytes, extent.slots, extent.kind != plan::ExtentKind::kState, extent.page_bytes});
    }
    nvme::StoreOptions store;
    nvme::DriveOptions drive;
    drive.path = options.folder;
    drive.read_bytes_per_second = options.read_bytes_per_second;
    drive.write_bytes_per_second = options.write_bytes_per_second;
    store.drives = {drive};
    store.engine = options.engine;
    store.depth = options.depth;
    store.block_size = options.block_size;
    store.wrap_engine = options.wrap_engine;
    store.stall_seconds = options.stall_seconds;
    tiers.nvme = store;
    tiers.open_mode = options.open_mode;
    return tiers;
  }

  plan::CompileInput input_;
  plan::ProgramSet programs_;
  optim::Pool pool_;
  std::unique_ptr<swap::Tiers> tiers_;
  std::unique_ptr<step::OpRunner> runner_;
  std::unique_ptr<Poison> poison_;
  std::unique_ptr<step::Executor> executor_;
  std::unique_ptr<step::StateAccess> access_;
  std::unique_ptr<step::Trainer> trainer_;
};

}  // namespace zinf::testing
