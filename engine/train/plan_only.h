// `zinf plan`: the plan of a run on this machine or on a given one, without weights or data.
#pragma once

#include <optional>
#include <string>

#include "engine/base/bytes.h"
#include "engine/config/load.h"

namespace zinf::train {

struct PlanOnlyOptions {
  std::string gpu;  // class name; empty: this machine
  std::optional<Bytes> device_memory, host_memory;
  std::string nvme;  // "SIZE,rGBs,wGBs,TBW"
  int ranks = 1;
  bool json = false;
};

// Prints to stdout. Exit code; Error(kDoesNotFit) when it does not fit.
int plan_only(const config::LoadResult& loaded, const PlanOnlyOptions& options);

}  // namespace zinf::train
