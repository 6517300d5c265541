// What `checkpoint.keep` asks of a run: spacing, disk space, going back to a kept commit.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/kept.h"
#include "engine/config/run_config.h"
#include "engine/plan/planner.h"
#include "engine/train/keeper.h"
#include "engine/train/model_input.h"
#include "engine/train/run_area.h"
#include "swap/tiers.h"

namespace zinf::train {

// checkpoint.keep_every, else checkpoint.every where that is given, else 10 minutes.
config::Cadence keep_cadence(const config::RunConfig& config);

// The HF folder that a kept checkpoint is exported to.
std::string kept_export(const std::string& run_folder, std::int64_t step);

// Writes the kept commit of `step` as such a folder, in bf16 unless export.dtype says otherwise.
// give_up: see export_model().
void export_kept(const config::RunConfig& config, const std::string& run_folder, std::int64_t step,
                 const std::atomic<bool>& give_up);

// What is still to be written before the run is over: kept copies (one more than are kept, since an
// old one goes only when the new one is whole), exports, and what of the area the file system could
// not reserve. Throws Error(kDoesNotFit) naming folder, needed and free bytes.
struct SpaceNeeds {
  std::vector<std::string> drives;
  std::vector<Bytes> unreserved;     // of the area, on each drive
  std::vector<Bytes> kept_on_drive;  // of one copy
  std::int64_t copies = 0;           // that may come on top of those that are there
  std::string run_folder;
  Bytes exports = 0;
  bool planned = false;  // the area is not there yet: all of it is unreserved
  // What will have been removed by then; empty: nothing.
  std::vector<Bytes> freed;
  Bytes freed_in_run_folder = 0;
};
void check_space_for(const SpaceNeeds& needs);
// at: the run's area, whose tiers have been made. extents: of states. kept: those that are there
// already.
SpaceNeeds space_needs(const config::RunConfig& config, const ModelInput& model,
                       const checkpoint::RunAt& at, const swap::Tiers& tiers, int extents,
                       const checkpoint::KeptCheckpoints& kept);

// Before --fresh drops the run in the folder: the same of the run that is to take its place, with
// its area, as planned. store: of both.
void check_space_after_drop(const config::RunConfig& config, const ModelInput& model,
                            const plan::Plan& plan, const nvme::StoreOptions& store);

// The config outlives the keeper. A quarter of the measured rate is left to copies.
KeeperOptions keeper_options(const config::RunConfig& config, const ModelInput& model,
                             const plan::Hardware& hardware, const swap::Tiers& tiers, int extents);

// Before step 1: removes what a killed process left of copies, checks the space for those to come,
// and gives what the run's keeper needs, if it has to keep any. base: of the run's manifests.
std::optional<KeeperOptions> prepare_keeping(const config::RunConfig& config,
                                             const ModelInput& model,
                                             const plan::Hardware& hardware,
                                             const checkpoint::Manifest& base, const RunArea& area,
                                             const swap::Tiers& tiers);

}  // namespace zinf::train
