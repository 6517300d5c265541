// From config, model and data to a plan: batch arithmetic, budgets, probe, search.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cpu_optim/loss_scaler.h"
#include "cpu_optim/optimizer.h"
#include "engine/config/load.h"
#include "engine/config/run_config.h"
#include "engine/data/loader.h"
#include "engine/plan/planner.h"
#include "engine/step/trainer.h"
#include "engine/train/budgets.h"
#include "engine/train/drives.h"
#include "engine/train/model_input.h"
#include "engine/train/probe.h"
#include "nvme/store.h"

namespace zinf::train {

// Logs what the config's reading left to say, and what each "auto" stands for.
void say_notes(const config::LoadResult& loaded);
// Every value and where it came from, on stdout.
void show_settings(const config::RunConfig& config);

// Error(kUsage) for settings that do not go together.
void refuse_unsupported(const config::RunConfig& config);

// The optimizer's side of the config.
optim::Format optimizer_format(const config::RunConfig& config, model::DType compute_type);
// What it is called in zinf-hardware.yaml.
std::string optimizer_name(const optim::Format& format);
// "optimizer: adamw (betas 0.9 and 0.999, eps 1e-08, weight decay 0.1) with avx2 kernels on 4
// threads": what the algorithm has of these.
std::string optimizer_line(const config::RunConfig& config, const optim::Optimizer& optimizer,
                           const optim::Pool& pool);
optim::Hyper optimizer_hyper(const config::RunConfig& config);
int optimizer_threads(const config::RunConfig& config);
// fp16. from: where a run goes on.
optim::LossScaler make_loss_scaler(const config::RunConfig& config,
                                   const std::optional<optim::LossScaleState>& from);
std::vector<plan::StateLayout> state_layouts(const optim::Format& format);
// Groups 0 (decay) and 1 (norms and biases), and which elements of each piece belong to which.
std::vector<optim::Group> decay_groups(const config::RunConfig& config);
std::vector<std::vector<optim::GroupRange>> decay_ranges(const model::ModelSpec& model);

struct BatchShape {
  std::int64_t micro = 1;         // rows per micro-batch
  std::int64_t accumulation = 1;  // micro-batches per step
};
// Positions of a row: data.seq_len, else the model's longest, at most 2048; 1 for regression.
// Error(kUsage): longer than the model takes.
std::int64_t row_length(const config::RunConfig& config, const ModelInput& model);

// An automatic micro-batch becomes the largest power of two (up to 64 rows) whose plan fits the
// budgets, by the family's estimates of the workspace; 1 when none does. so_far: of the run that
// goes on, whose rows per step stay; then the largest part of its micro-batch that fits. length: of
// a row.
BatchShape batch_shape(const config::RunConfig& config, const ModelInput& model,
                       std::int64_t length, const BatchShape& so_far = {0, 0});

// Error(kDoesNotFit), by estimates, for what no measured workspace can make fit, where measuring
// would take more than `memory`: it holds a stage. Else the plan refuses, by what was measured.
void refuse_too_large(const config::RunConfig& config, const ModelInput& model,
                      const BatchShape& batch, const plan::ShapeClass& shape,
                      const plan::Budgets& budgets, Bytes memory);

// Empty when the config names no drive.
std::optional<nvme::StoreOptions> store_options(const config::RunConfig& config,
                                                const std::string& area);
// Whether the run will lock its I/O buffers: asked for, and by an engine that can.
bool pins_memory(const config::RunConfig& config);
// For an Engine: an area of this process's own in `folder`.
nvme::StoreOptions engine_store(const std::string& folder);
plan::Pins pins(const config::RunConfig& config);

// Hardware for the simulator: the tuned profile where there is one, else measured now.
plan::Hardware measure_hardware(const config::RunConfig& config, const optim::Optimizer& optimizer,
                                optim::Pool& pool, const nvme::BenchOptions& bench = {});

// Commits need a place even where no drive is given: then it is the run folder. Several drives
// share the traffic by their rates in `hardware`.
nvme::StoreOptions state_store(const config::RunConfig& config, const std::string& run_folder,
                               const std::string& area, const plan::Hardware& hardware);

plan::PlanRequest plan_request(const config::RunConfig& config, const ModelInput& model,
                               const BatchShape& batch, const plan::ShapeClass& shape,
                               const StageProbe& probe, const plan::Hardware& hardware,
                               const plan::Budgets& budgets);

}  // namespace zinf::train
