// zinf-nvme.yaml: what tuning found for a drive, a flat YAML mapping that `plan` and `train` read.
// Unknown or missing keys are errors: every key is used.
#pragma once

#include <optional>
#include <string>

#include "engine/base/bytes.h"
#include "nvme/io_engine.h"

namespace zinf::nvme {

struct NvmeProfile {
  int version = 1;
  EngineKind engine = EngineKind::kAuto;  // settings for io.*
  Bytes block_size = kMiB;
  int depth = 32;
  double read_gb_per_second = 0;  // rates for the planner, and stripe weights (mixed)
  double write_gb_per_second = 0;
  double mixed_gb_per_second = 0;  // both directions together
  std::string device;  // a profile of another drive or file system is stale: see stale_reason()
  std::string file_system;
  bool direct = false;
};

std::string profile_path(const std::string& directory);  // DIR/zinf-nvme.yaml
std::string profile_yaml(const NvmeProfile& profile);
// `name` is for messages. Throws Error(kUsage) naming file, line and key.
NvmeProfile parse_profile(const std::string& text, const std::string& name);
// nullopt when the directory has none.
std::optional<NvmeProfile> load_profile(const std::string& directory);
// Writes aside, syncs, renames. Throws Error.
void save_profile(const std::string& directory, const NvmeProfile& profile);
// Empty, or why the profile does not describe this directory any more.
std::string stale_reason(const NvmeProfile& profile, const std::string& directory);

}  // namespace zinf::nvme
