// What a run leaves behind: the summary and the exported model.
#pragma once

#include <atomic>
#include <string>

#include "engine/model/hf_export.h"
#include "engine/observe/summary.h"
#include "engine/train/model_input.h"
#include "engine/train/steps.h"

namespace zinf::train {

// Least possible NVMe traffic of a step with this placement, in bytes per parameter: each state on
// NVMe is read and written once, weights are read once more for the backward, spilled gradients
// move once each way.
struct LeastTraffic {
  double read = 0;
  double write = 0;
};
LeastTraffic least_traffic(const plan::Plan& plan);

// Without hashes where the run was stopped and hashing its state would take half its grace time.
observe::Summary make_summary(const config::RunConfig& config, const plan::Plan& plan,
                              Session& session, const LoopResult& result);

// The model that the run ends with, by its export settings; the log says what was written.
void export_at_end(const config::RunConfig& config, const ModelInput& model,
                   step::StateAccess& states, int slot, const std::string& path);

// Streams the model out of drained states. slot: which one holds the state. shard_bytes: of a file
// at most, unless one tensor is larger; 0: one file. Once give_up is true it throws, and nothing is
// left of it.
model::ExportResult export_model(const ModelInput& model, step::StateAccess& states, int slot,
                                 const std::string& path, model::DType type, Bytes shard_bytes,
                                 const std::atomic<bool>* give_up = nullptr);
// That of the config: export.shard_size, or 0 with export.single_file.
Bytes shard_bytes(const config::RunConfig& config);
// bf16 or fp32: as the config says, else bf16 where the weights are.
model::DType export_type(const config::RunConfig& config, model::DType compute_type);

}  // namespace zinf::train
