// What the drives of a run give together, measured or tuned, and by the shares that they will have.
#pragma once

#include <functional>
#include <vector>

#include "engine/plan/planner.h"
#include "nvme/bench.h"
#include "nvme/store.h"

namespace zinf::train {

// What drives give together when each gets its share by weight: no more than the one that its share
// keeps busy for longest allows.
double striped_rate(const std::vector<double>& rates, const std::vector<double>& weights);

// Sets the rates of all drives together from those of each: where each has such a share of the
// bytes, by default in proportion to its mixed rate.
void combine_drives(plan::Hardware& hardware, const std::vector<double>& shares);
void combine_drives(plan::Hardware& hardware);

// Reads and writes a scratch file of `bytes` on each of the store's drives, alone and together.
// `bench`: its engine wrapper and clock, for tests; what else it says is not used.
void probe_drives(const nvme::StoreOptions& store, Bytes bytes, plan::Hardware& hardware,
                  const nvme::BenchOptions& bench = {});

// make() plans with `hardware`. Its rates are those of drives that all have room for their share;
// where the planned area shows that one has not, or the area is there already with other shares,
// `hardware` becomes what these shares allow, and the plan is made once more. fresh: an area that
// is there goes.
plan::Plan plan_with_room(const nvme::StoreOptions& store, bool fresh, plan::Hardware& hardware,
                          const std::function<plan::Plan()>& make);

}  // namespace zinf::train
