// What `zinf train --dry-run` prints to stdout: settings, plan, one training sample with its mask.
#pragma once

#include <string>

#include "engine/config/run_config.h"
#include "engine/data/loader.h"
#include "engine/plan/planner.h"
#include "engine/train/model_input.h"

namespace zinf::train {

// json: the plan's fields and "sample": ids and which of them are learnt, or features and label.
void show_dry_run(const config::RunConfig& config, const ModelInput& model,
                  const data::Loader& loader, const plan::Plan& plan, bool json);
// The same JSON for a run that does not fit.
void show_dry_refusal(const config::RunConfig& config, const ModelInput& model,
                      const data::Loader& loader, const std::string& reason);

}  // namespace zinf::train
