// What the lanes are doing, for a StallWatch. I/O requests have a watch of their own
// (nvme/io_lane.h), which fails them and names file and offset, and so have the files of a commit
// (engine/base/under_way.h): an op on those lanes counts as hung after twice the time, where not
// even that watch gets to run.
#pragma once

#include <optional>

#include "engine/base/stall_watch.h"
#include "engine/model/model_spec.h"
#include "engine/step/executor.h"

namespace zinf::step {

// The op that has been under way for longest, with the names of its stage and piece. Any thread.
std::optional<Activity> longest_activity(const Executor& executor, const model::ModelSpec& model);

}  // namespace zinf::step
