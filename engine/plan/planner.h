// Chooses placement and settings: proposes, compiles, simulates, ranks. Pure.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/compile.h"
#include "engine/plan/simulate.h"

namespace zinf::plan {

struct Budgets {
  Bytes device = 0;
  Bytes host = 0;                    // all that the process keeps in RAM
  Bytes host_base = 0;               // libraries and heap, measured: reserved before anything else
  Bytes nvme = 0;                    // 0: no drive
  bool device_in_host = true;        // the device arena is host memory and counts there too
  Bytes host_base_varies = 0;        // from start to start: a refusal asks for so much more of host
  bool device_follows_host = false;  // nobody gave a device budget: it is a quarter of host
  // Memory of the machine that is planned for, where that is known: refusals say what exceeds it.
  std::optional<Bytes> machine = {};
  // What limits nvme, for refusals: nine tenths of the free space, a capacity, an argument.
  enum class NvmeLimit { kFreeSpace, kCapacity, kGiven } nvme_limit = NvmeLimit::kFreeSpace;
  // How to change the others.
  const char* device_option = "--set memory.device=";
  const char* host_option = "--set memory.host=";
};

// What the user fixed; everything else is chosen.
struct Pins {
  std::optional<Tier> weights, optimizer, gradients, activations;
  std::optional<int> group;
  std::optional<bool> recompute;
  // Tests and benchmarks; not in the configuration.
  std::optional<int> prefetch, ring_slots, keep_at_turn;
  std::optional<std::int64_t> chunk_elements;
  std::optional<int> early_updates = {};
  std::optional<std::int64_t> slice_rows = {};
};

// Updates during backward. kAuto: where the simulated step is shorter; kAlways: wherever slots and
// memory allow it (where they don't, a note says why).
enum class EarlyUpdates { kNever, kAuto, kAlways };

struct PlanRequest {
  model::ModelSpec model;
  std::vector<StateLayout> states;
  model::DType gradient_type = model::DType::kFloat32;
  ShapeClass shape;  // the largest
  int micro_batches = 1;
  std::vector<StageWorkspace> workspace;
  Budgets budgets;
  Pins pins;
  Hardware hardware;
  bool overlap = true;
  std::optional<bool>
      commit_each_step;  // absent: when every state is on NVMe and two slots allow it
  int slots = 2;
  bool clips = false;  // the norm may clip, so that early updates are speculation
  EarlyUpdates early_updates = EarlyUpdates::kAuto;
  bool pin = false;           // the host arena's pages are to be locked for I/O
  bool may_drop_slot = true;  // nothing else in the configuration needs two slots
};

struct Rejected {
  std::string what;                         // settings in words
  std::string why;                          // "does not fit: host needs ..." or "slower: 1.92 s"
  std::optional<double> step_seconds = {};  // of what is slower
  Bytes beyond = 0;                         // its budgets, of what does not fit
};

struct Plan {
  CompileInput input;  // input.model points into `model`
  std::unique_ptr<model::ModelSpec> model;
  ProgramSet programs;
  // Of the steps to expect: `early` where nothing clips or early updates are a must, else
  // `waiting`.
  Forecast forecast;
  TrafficForecast traffic;
  Forecast waiting;               // every update waits for the norm
  std::optional<Forecast> early;  // some pieces are updated during backward
  Budgets budgets;
  Bytes device_bytes = 0;  // arenas of exact size
  Bytes host_arena_bytes = 0;
  Bytes host_bytes = 0;    // base + arenas that are host memory
  Bytes pinned_bytes = 0;  // of the host arena: locked pages, as far as the run is allowed to
  Bytes nvme_bytes = 0;    // extents with their slots
  bool all_on_nvme = false;
  std::vector<Rejected> rejected;  // the fastest first, then those that come closest to fitting
  // A step's, had the planner been free to place everything: where pins make steps slower.
  std::optional<double> unpinned_step_seconds;
  std::vector<std::string> notes;  // "2 of 14 gradients spill to NVMe: ..."
};

// Error(kDoesNotFit): needed and given per tier, and the smallest change that fits.
Plan make_plan(const PlanRequest& request);
// Whether make_plan() finds a plan. Hardware plays no part. Many times cheaper.
bool fits(const PlanRequest& request);

// "group 8, gradients on host, activations on device, ..." for tables and logs.
std::string describe(const CompileInput& input);

}  // namespace zinf::plan
