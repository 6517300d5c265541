// zinf::Engine: forward, backward, step for C++ users' own stages, out of core.
//
//   zinf::EngineOptions options;
//   options.host_memory = 2 * zinf::kGiB;
//   options.nvme = "/nvme/swap";
//   zinf::Engine engine(zinf::model::custom_model(features, stages, head), options);
//   for (...) {
//     engine.forward(batch);
//     const double loss = engine.backward();
//     engine.step(1e-4);
//   }
//
// The model's state need not fit the device or the host: budgets are kept as in `zinf train`. Not
// thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cpu_optim/optimizer.h"
#include "engine/base/bytes.h"
#include "engine/data/batch.h"
#include "engine/model/compute.h"
#include "engine/plan/planner.h"

namespace zinf {

struct EngineOptions {
  Bytes device_memory = 0;  // of the device arena; 0: a quarter of host_memory
  Bytes host_memory = 0;    // all that the process keeps in RAM; 0: what is free, less a reserve
  std::string nvme;         // folder for state that does not fit; empty: none
  int micro_batch = 1;      // rows
  int accumulation = 1;     // micro-batches per step
  optim::Format format;     // fp32 AdamW
  optim::Hyper hyper;
  double weight_decay = 0;
  double max_norm = 0;  // clipping; 0: none
  std::uint64_t seed = 42;
};

class Engine {
 public:
  // Plans, allocates and initialises. Error(kDoesNotFit) when the budgets are too small, with what
  // would fit.
  Engine(model::ModelSpec spec, std::unique_ptr<model::Compute> compute,
         const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // `accumulation` micro-batches (or fewer) of `micro_batch` rows. The update of the step before
  // runs beside it. The batch must stay alive until the following forward() or finish() has
  // returned.
  void forward(const data::StepBatch& batch);
  // The mean loss over the batch's targets. Error(kFailed) when loss or gradients are not finite:
  // nothing has changed. Tensors that no stage used for this batch keep their values and moments in
  // the step, without decay, as PyTorch's do whose gradient is None; the log names them once. (Bias
  // correction goes by the engine's steps, not by those in which a tensor was used.)
  double backward();
  // Decides the update with these gradients; it runs beside the next forward, or in finish().
  void step(double lr);
  // Waits until every step has been applied.
  void finish();

  double grad_norm() const;  // of the latest backward, before clipping
  // fp32 weights of a tensor, by its name ("stage.tensor"). Finishes first.
  std::vector<float> weights(const std::string& tensor);
  const plan::Plan& plan() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zinf
