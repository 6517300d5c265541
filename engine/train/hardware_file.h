// zinf-hardware.yaml: what `zinf tune --all` measured of a machine, a flat YAML mapping that `plan`
// and `train` read from the first folder of memory.nvme that has one. Unknown or missing keys are
// errors: every key is used.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "engine/config/run_config.h"
#include "engine/plan/hardware.h"

namespace zinf::train {

struct HardwareFile {
  int version = 1;
  std::string processor;  // of another one, or with other threads, the file is stale
  int threads = 0;
  // Copies while both directions run, and a loop that reads and writes memory in place: no
  // optimizer is faster.
  double copy_to_device_gb_per_second = 0;
  double copy_from_device_gb_per_second = 0;
  double host_gb_per_second = 0;
  std::string optimizer;  // optimizer_name(): the next figure is that of this one
  double optimizer_gb_per_second = 0;
  std::map<std::string, plan::StageSeconds> stages;  // by stage_signature()
};

std::string hardware_path(const std::string& directory);  // DIR/zinf-hardware.yaml
std::string hardware_yaml(const HardwareFile& file);
// Throws Error(kUsage) naming file, line and key.
HardwareFile parse_hardware(const std::string& text, const std::string& name);

// The file of the config's drives; nullopt when there is none, or one of another machine (said
// once).
std::optional<HardwareFile> tuned_hardware(const config::RunConfig& config);

}  // namespace zinf::train
