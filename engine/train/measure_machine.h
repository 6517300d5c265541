// The leisurely measurements of `zinf tune --all`: everything that the plan needs to know of this
// machine but the drives.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "engine/config/run_config.h"
#include "engine/train/hardware_file.h"

namespace zinf::train {

struct MachineReport {
  HardwareFile file;
  std::string model;            // "gpt2, 124439808 parameters, bf16, rows 1 x 256"
  double flops_per_second = 0;  // of the measured calls, by the model's own count
};

// Compute at the shapes of the config's model (without one: GPT-2 125M, 1 x 256 positions), copies
// between host and device both ways at once, memory bandwidth and the config's optimizer. Medians
// of `repetitions`. progress is told what is measured next. Throws Error.
MachineReport measure_machine(const std::optional<config::RunConfig>& config, int repetitions,
                              const std::function<void(const std::string&)>& progress);

}  // namespace zinf::train
