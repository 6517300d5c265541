// A planned run brought to life: tiers, lanes, states. Everything is allocated here; the steps
// allocate nothing.
#pragma once

#include <memory>
#include <string>

#include "engine/config/run_config.h"
#include "engine/model/weight_source.h"
#include "engine/plan/planner.h"
#include "engine/step/state_access.h"
#include "engine/step/trainer.h"

namespace zinf::train {

struct SessionParts {
  const plan::Plan* plan = nullptr;
  model::Compute* compute = nullptr;
  const optim::Optimizer* optimizer = nullptr;
  optim::Pool* pool = nullptr;
  std::vector<optim::Group> groups;
  std::vector<std::vector<optim::GroupRange>> group_ranges;
  std::optional<nvme::StoreOptions> store;
  bool verify = true;  // checksums at every read
  // false: every state lives in memory and is never committed, so there is no area.
  bool state_on_disk = true;
  nvme::OpenMode open_mode = nvme::OpenMode::kReplace;
  std::string scratch_ending = "-scratch";  // of the area's name
  step::ExecutorOptions executor;
  step::Trainer::Options trainer;
};

// A new run's.
step::Trainer::Options trainer_options(const config::RunConfig& config, const plan::Plan& plan);

// Owns tiers, executor and trainer; what SessionParts points to outlives it. Not thread-safe.
class Session {
 public:
  explicit Session(const SessionParts& parts);

  // First weights, range by range.
  void load(const model::WeightSource& weights);

  step::Trainer& trainer() { return *trainer_; }
  step::Executor& executor() { return *executor_; }
  step::OpRunner& runner() { return *runner_; }
  step::StateAccess& states() { return *states_; }
  swap::Tiers& tiers() { return *tiers_; }

 private:
  const plan::Plan& plan_;
  std::unique_ptr<swap::Tiers> tiers_;
  std::unique_ptr<step::OpRunner> runner_;
  std::unique_ptr<step::Executor> executor_;
  std::unique_ptr<step::StateAccess> states_;
  std::unique_ptr<step::Trainer> trainer_;
};

}  // namespace zinf::train
