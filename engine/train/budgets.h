// What a run may take of this machine: memory and space on the drives.
#pragma once

#include <optional>
#include <string>

#include "engine/config/run_config.h"
#include "engine/model/model_spec.h"
#include "engine/plan/planner.h"

namespace zinf::train {

// What the process holds beside the arenas: what is resident now, and an allowance for what still
// comes (threads, I/O rings, batches, metrics).
Bytes host_base_now(model::DType compute);

// What is free now, less 2 GiB or a tenth of it, whichever is more.
Bytes default_host_budget();

// Budgets of this machine, or as the config sets them. of_run: the area whose space is this run's
// to use; absent: that of the run in the folder. Error(kUsage) when a drive's folder can't be used.
plan::Budgets budgets(const config::RunConfig& config, Bytes host_base,
                      const std::optional<std::string>& of_run = {});
// The same for this process as it is now.
plan::Budgets budgets_now(const config::RunConfig& config, model::DType compute,
                          const std::optional<std::string>& of_run = {});

// Error(kDoesNotFit) for a plan inside a host budget that this machine does not have; a warning
// where other processes hold what the plan counts on.
void refuse_beyond_machine(const plan::Plan& plan);

}  // namespace zinf::train
