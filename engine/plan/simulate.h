// Runs the programs on paper: the same ops, lanes and edges, with predicted durations.
#pragma once

#include <array>
#include <vector>

#include "engine/plan/compile.h"
#include "engine/plan/hardware.h"

namespace zinf::plan {

struct LaneForecast {
  double busy_seconds = 0;  // stand-alone time of its ops, per step
  Bytes bytes = 0;          // per step
};

struct Forecast {
  double step_seconds = 0;  // a steady step: from one border after backward to the next
  double ideal_seconds =
      0;  // per segment the busiest lane's time: no order, no waiting, no full buffers
  double first_step_seconds = 0;
  // Time a step for which compute, or the decision at its end, stands still for updates, their
  // reads and their writes: those that it depends on, and those that what it depends on queues
  // behind.
  double exposed_optimizer_seconds = 0;
  std::array<LaneForecast, kLanes> lanes;
  Lane bottleneck = Lane::kCompute;  // the lane with the most stand-alone time
};

// Predicted stand-alone seconds of every op of a segment.
std::vector<double> op_seconds(const ProgramSet& set, const CompileInput& input,
                               const Hardware& hardware, Segment segment);
Forecast simulate(const ProgramSet& set, const CompileInput& input, const Hardware& hardware,
                  Cycle cycle = Cycle::kPlain);

// Bytes per step by direction and per parameter: exact, hardware plays no part.
struct TrafficForecast {
  Bytes nvme_read = 0, nvme_write = 0, host_to_device = 0, device_to_host = 0;
};
TrafficForecast traffic(const ProgramSet& set, Cycle cycle = Cycle::kPlain);

}  // namespace zinf::plan
