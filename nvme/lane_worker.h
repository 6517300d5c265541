// The loop of a lane's thread: take news, issue blocks, reap and examine completions.
#pragma once

#include <future>
#include <string>

#include "nvme/io_lane.h"
#include "nvme/lane_inbox.h"

namespace zinf::nvme {

// Makes the engine, hands its name (or the exception) to `started`, then serves the inbox until it
// is stopped and everything submitted has completed.
void run_lane(const LaneOptions& options, LaneInbox& inbox, std::promise<std::string>& started);

}  // namespace zinf::nvme
