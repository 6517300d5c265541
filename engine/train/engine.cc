#include "engine/train/engine.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/machine.h"
#include "engine/base/str.h"
#include "engine/model/torch_runtime.h"
#include "engine/model/weight_source.h"
#include "engine/train/plan_run.h"
#include "engine/train/probe.h"
#include "engine/train/session.h"
#include "nvme/directory.h"

namespace zinf {

struct Engine::Impl {
  std::unique_ptr<model::Compute> compute;
  optim::Pool pool;
  std::unique_ptr<optim::Optimizer> optimizer;
  plan::Plan plan;
  std::unique_ptr<train::Session> session;
  step::StepResult latest;
  bool told_unused = false;
};

namespace {

plan::Plan make_engine_plan(const model::ModelSpec& spec, model::Compute& compute,
                            const optim::Optimizer& optimizer, optim::Pool& pool,
                            const EngineOptions& options) {
  plan::PlanRequest request;
  request.model = spec;
  request.states = train::state_layouts(optimizer.format());
  request.shape = {options.micro_batch, 1};
  request.micro_batches = options.accumulation;
  const train::StageProbe probe = train::probe_stages(spec, compute, request.shape);
  request.workspace = probe.workspace;
  train::probe_host(optimizer, pool, request.hardware);
  request.hardware.stages = probe.seconds;
  request.commit_each_step = false;
  request.slots = 1;
  request.pin = true;
  request.budgets.host_base = train::host_base_now(request.model.compute_type);
  request.budgets.host =
      options.host_memory > 0 ? options.host_memory : train::default_host_budget();
  request.budgets.device =
      options.device_memory > 0 ? options.device_memory : request.budgets.host / 4;
  if (!options.nvme.empty()) {
    request.budgets.nvme = nvme::free_bytes(options.nvme) / 10 * 9;
    train::probe_drives(train::engine_store(options.nvme), 32 * kMiB, request.hardware);
  }
  return make_plan(request);
}

}  // namespace

Engine::Engine(model::ModelSpec spec, std::unique_ptr<model::Compute> compute,
               const EngineOptions& options)
    : impl_(std::make_unique<Impl>()) {
  Impl& impl = *impl_;
  impl.compute = std::move(compute);
  impl.optimizer = std::make_unique<optim::Optimizer>(options.format, options.hyper);
  model::set_compute_threads(usable_physical_cores());
  impl.plan = make_engine_plan(spec, *impl.compute, *impl.optimizer, impl.pool, options);
  train::SessionParts parts;
  parts.plan = &impl.plan;
  parts.compute = impl.compute.get();
  parts.optimizer = impl.optimizer.get();
  parts.pool = &impl.pool;
  parts.groups = {{1.0, options.weight_decay}};
  for (const model::PieceSpec& piece : spec.pieces) {
    std::vector<optim::GroupRange> ranges;
    for (const model::TensorSpec& tensor : piece.tensors)
      ranges.push_back({tensor.offset, tensor.elements, 0});
    parts.group_ranges.push_back(std::move(ranges));
  }
  // State that lives in memory needs no file: the engine commits nothing.
  parts.state_on_disk = !options.nvme.empty();
  if (parts.state_on_disk) parts.store = train::engine_store(options.nvme);
  parts.trainer.max_norm = options.max_norm;
  parts.trainer.seed = options.seed;
  parts.trainer.slots = 1;
  impl.session = std::make_unique<train::Session>(parts);
  impl.session->load(*model::random_weights(options.seed));
}

Engine::~Engine() {
  if (!impl_->session) return;
  if (nvme::Store* store = impl_->session->tiers().store()) {
    try {
      impl_->session->executor().wait_all();
      store->remove();
    } catch (const std::exception& error) {
      log::warning(str("the engine's swap area could not be removed: ", error.what()));
    }
  }
}

void Engine::forward(const data::StepBatch& batch) { impl_->session->trainer().forward(batch); }

double Engine::backward() {
  impl_->latest = impl_->session->trainer().backward();
  if (!impl_->latest.finite) {
    impl_->session->trainer().skip();
    throw Error(ErrorKind::kFailed,
                str("loss ", impl_->latest.loss, ", gradient norm ", impl_->latest.grad_norm,
                    ": not finite"),
                "lower the learning rate or clip gradients (EngineOptions::max_norm)");
  }
  const std::vector<std::string> unused = impl_->session->runner().unused_tensors();
  if (!unused.empty() && !impl_->told_unused) {
    impl_->told_unused = true;
    std::string names;
    for (const std::string& name : unused) names += (names.empty() ? "" : ", ") + name;
    log::info(str("no stage used ", names,
                  " in this step: where that is so, values and moments stay as they are"));
  }
  return impl_->latest.loss;
}

void Engine::step(double lr) { impl_->session->trainer().update(lr); }
void Engine::finish() { impl_->session->trainer().drain(); }
double Engine::grad_norm() const { return impl_->latest.grad_norm; }
const plan::Plan& Engine::plan() const { return impl_->plan; }

std::vector<float> Engine::weights(const std::string& name) {
  finish();
  const model::ModelSpec& spec = *impl_->plan.model;
  for (std::size_t p = 0; p < spec.pieces.size(); ++p) {
    for (const model::TensorSpec& tensor : spec.pieces[p].tensors) {
      if (tensor.name != name) continue;
      std::vector<float> piece;
      std::vector<float> chunk(static_cast<std::size_t>(step::StateAccess::kElements));
      for (std::int64_t first = 0; first < spec.pieces[p].elements;
           first += step::StateAccess::kElements) {
        const std::int64_t count =
            std::min(step::StateAccess::kElements, spec.pieces[p].elements - first);
        impl_->session->states().read_master(static_cast<int>(p), impl_->session->trainer().slot(),
                                             first, count, chunk.data());
        piece.insert(piece.end(), chunk.begin(), chunk.begin() + count);
      }
      return {piece.begin() + tensor.offset, piece.begin() + tensor.offset + tensor.elements};
    }
  }
  throw Error(ErrorKind::kUsage, str("no tensor \"", name, "\""));
}

}  // namespace zinf
