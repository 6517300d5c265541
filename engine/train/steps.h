// The step loop: batches in, metrics out, evaluation and stop signals at the borders.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cpu_optim/loss_scaler.h"
#include "engine/base/lr_schedule.h"
#include "engine/config/run_config.h"
#include "engine/data/loader.h"
#include "engine/observe/step_record.h"
#include "engine/train/holds.h"
#include "engine/train/run_folder.h"
#include "engine/train/session.h"

namespace zinf::train {

struct LoopParts {
  const config::RunConfig* config = nullptr;
  const plan::Plan* plan = nullptr;
  Session* session = nullptr;
  const data::Loader* loader = nullptr;
  const data::Loader* eval_loader = nullptr;  // null: no evaluation
  const RunFolder* folder = nullptr;
  LrSchedule schedule;
  plan::Hardware hardware;      // what the plan counted on: measured rates are held against it
  std::int64_t first_step = 0;  // steps already done
  std::int64_t data_start = 0;  // of them those before the data's first
  std::int64_t steps = 0;       // of the whole run
  std::string unit = "tok";
  bool trace = false;  // every op of every step into trace.json
  std::function<std::optional<std::int64_t>()> last_commit = {};  // for status.json
  // fp16: the scale of the steps to come; null else.
  optim::LossScaler* loss_scaler = nullptr;
  // Called drained, after each evaluation and at the end: sampling, for people. May be empty.
  std::function<void(std::int64_t step)> sample = {};
  // Called drained after the given step when a commit is due; makes the state durable.
  std::function<void(std::int64_t step)> commit = {};
  // Once a step is decided, before its update is queued: its loss, if it is applied.
  std::function<void(std::int64_t step, std::optional<double> loss)> note_step = {};
  Keeper* keeper = nullptr;           // null: no older commits are kept
  ReadHoldServer* readers = nullptr;  // null: no command can read while the run trains
  config::Cadence keep_every = {};
};

struct LoopResult {
  std::int64_t steps = 0;  // of the run; the rest is of this process
  double final_loss = 0;
  std::optional<double> eval_loss;
  std::vector<double> step_seconds;  // of the steady steps, after those before the first of them
  std::vector<double> exposed_optimizer_seconds;  // of the same steps
  std::int64_t made = 0;                          // steps
  std::int64_t tokens = 0;                        // of them
  double total_seconds = 0;
  std::array<step::LaneTotals, plan::kLanes> lanes{};  // of the steady steps
  std::int64_t steady_steps = 0;
  double steady_seconds = 0;
  std::map<std::string, double> profile_ratio;
  int stopped_by = 0;  // signal
};

// The lane with the most stand-alone time, commits aside; empty: none was busy.
std::string busiest_lane(std::span<const step::LaneTotals> totals);

// Returns drained (canonical state A). Error(kFailed) for a non-finite loss or gradient, naming
// step and piece.
LoopResult run_steps(const LoopParts& parts);

LrSchedule lr_schedule(const config::RunConfig& config, std::int64_t steps);

}  // namespace zinf::train
