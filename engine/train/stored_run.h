// A run's newest commit or a kept one, opened for reading (export, inspect, verify) with a few MiB
// of memory, whether the run is training or not.
#pragma once

#include <memory>
#include <string>

#include "engine/checkpoint/manifest.h"
#include "engine/plan/planner.h"
#include "engine/step/state_access.h"
#include "engine/train/model_input.h"
#include "engine/train/read_hold.h"

namespace zinf::train {

class StoredRun {
 public:
  // step: of a kept checkpoint, or of the newest commit; none: the newest commit. Of a run that is
  // training the newest commit is held from here to the end (engine/train/read_hold.h).
  // Error(kUsage): no run, no whole commit, or no such step in the folder.
  explicit StoredRun(const std::string& run_folder,
                     std::optional<std::int64_t> step = std::nullopt);

  const checkpoint::Manifest& manifest() const { return manifest_; }
  const config::RunConfig& config() const { return config_; }
  const ModelInput& model() const { return model_; }
  // The commit's page table; empty: it has none.
  const std::string& pages() const { return pages_; }
  bool kept() const { return kept_; }  // the manifest is a kept checkpoint's
  step::StateAccess& states() { return *states_; }
  swap::Tiers& tiers() { return *tiers_; }

 private:
  checkpoint::Manifest choose(const std::string& run_folder, std::optional<std::int64_t> step);

  std::optional<ReadHold> hold_;  // first: it ends last
  bool kept_ = false;
  checkpoint::Manifest manifest_;
  std::string pages_;
  config::RunConfig config_;
  ModelInput model_;
  plan::CompileInput input_;
  plan::ProgramSet programs_;
  std::unique_ptr<swap::Tiers> tiers_;
  std::unique_ptr<step::StateAccess> states_;
};

// What metrics.jsonl says of a step; none: it has no line yet.
std::optional<double> logged_loss(const std::string& run_folder, std::int64_t step);

}  // namespace zinf::train
