// `zinf train`: the main path.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/load.h"
#include "nvme/io_engine.h"

namespace zinf::train {

struct TrainOptions {
  bool fresh = false;
  bool dry_run = false;  // plan and show one sample, touch nothing
  bool json = false;     // the summary (or the plan) as JSON on stdout
  bool trace = false;    // write trace.json into the run folder
  // Go on from this step: a kept commit, or the newest one.
  std::optional<std::int64_t> resume_from;
  bool allow = false;           // resume although the config changed in what is trained
  nvme::EngineWrapper wrap_io;  // faults between the run's states and the drive, for tests
};

// The loss of a fixed batch, the one that follows a commit, by the commit's weights; and what the
// run logged for it, where training went on: the two must agree.
struct StoredLoss {
  std::int64_t step = 0;
  double trained = 0;  // of the step itself, before its update, as its manifest says
  double next = 0;
  std::optional<double> logged;
  // Library, instruction set and threads are those of the commit: then losses agree to the bit.
  bool same_machine = true;
};
// step: a kept checkpoint; none: the newest commit. Throws Error.
StoredLoss stored_loss(const std::string& run_folder, std::optional<std::int64_t> step);

// Returns the exit code: 0 done, 128 + signal interrupted. Throws Error.
int train(const config::LoadResult& loaded, const TrainOptions& options);

}  // namespace zinf::train
