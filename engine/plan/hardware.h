// What the machine can do, as the simulator needs it. Measured (probe, tuned profile) or taken from
// a table by name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/base/bytes.h"

namespace zinf::plan {

// Seconds of one compute call at the planned shape; measured, or from FLOPs and a rate.
struct StageSeconds {
  double forward = 0;
  double backward = 0;       // with recompute; of the head: forward, loss and backward
  double backward_kept = 0;  // from kept activations
  double evaluate = 0;
};

struct DriveRates {
  double read = 0, write = 0, mixed = 0;  // bytes/s
};

struct Hardware {
  std::string origin;           // "measured at start", "zinf-hardware.yaml", "given"
  double flops_per_second = 0;  // used where no measured stage time is given
  double host_to_device = 0;    // bytes/s
  double device_to_host = 0;
  double nvme_read = 0;  // bytes/s alone
  double nvme_write = 0;
  double nvme_mixed = 0;  // bytes/s, both directions together, in the optimizer's ratio
  double optimizer_bytes_per_second = 0;  // state and gradient bytes read + written
  std::vector<StageSeconds> stages;       // empty: from FLOPs
  // Each drive alone; empty where none was measured. Those above are of all together.
  std::vector<DriveRates> drives = {};
};

// Known devices for `zinf plan --gpu NAME`: memory and usable rates of the class (not of one card).
struct GpuClass {
  const char* name;
  Bytes memory;
  double bf16_flops;       // sustained, not peak
  double copy_per_second;  // each way
};
std::optional<GpuClass> find_gpu(const std::string& name);
std::string gpu_names();

}  // namespace zinf::plan
