// Commits of a run.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "engine/checkpoint/manifest.h"
#include "engine/config/run_config.h"
#include "engine/data/open_data.h"
#include "engine/train/plan_run.h"
#include "engine/train/run_folder.h"
#include "engine/train/session.h"

namespace zinf::train {

// What every manifest of this run has in common.
checkpoint::Manifest manifest_base(const config::RunConfig& config, const ModelInput& model,
                                   const plan::Plan& plan, const optim::Optimizer& optimizer,
                                   const data::DataSet& data, const BatchShape& batch,
                                   std::int64_t data_start, const nvme::StoreOptions& store,
                                   std::int64_t steps);

// Of it the machine and its libraries, as they are now: see machine_changes().
void note_machine(checkpoint::Manifest& manifest);

// A hash over everything that decides the layout of the state area and the meaning of its bytes.
std::string model_signature(const model::ModelSpec& model);

// What a commit records of its step beside the state.
struct StepNote {
  std::optional<double> loss;                       // of a step that was applied
  std::optional<optim::LossScaleState> loss_scale;  // fp16: for the step to come
};

// Publishes manifests. publish() may come from the commit lane's thread; the rest from the main
// thread.
class Committer {
 public:
  // on_publish: called after each publication, in its thread, with the page table. May be empty.
  using OnPublish = std::function<void(const checkpoint::Manifest&, const std::string& pages)>;
  Committer(checkpoint::Manifest base, const RunFolder& folder, OnPublish on_publish = {})
      : base_(std::move(base)),
        metrics_(folder.metrics()),
        manifests_(folder.path()),
        on_publish_(std::move(on_publish)) {}

  // Before the step's update is queued.
  void note(std::int64_t step, const StepNote& note);
  // The store has been synced: only the manifest is missing. step: the run's step that this state
  // follows; its line in metrics.jsonl is written and becomes durable first.
  void publish(swap::Tiers& tiers, std::int64_t step, std::int64_t version, int slot,
               bool moments_are_zero, bool finished);
  // In state A: writes memory-resident states through, syncs, publishes.
  void commit(Session& session, std::int64_t step, bool finished);

  // This step's commit is the newest: also one that another process made, when the run goes on.
  void last_step_is(std::int64_t step);

  const checkpoint::Manifest& base() const { return base_; }
  // Empty before the first commit of a new run, and without a second slot.
  std::optional<std::int64_t> last_step() const {
    const std::int64_t step = last_step_.load();
    return step < 0 ? std::nullopt : std::optional(step);
  }

 private:
  checkpoint::Manifest base_;
  std::string metrics_;
  checkpoint::ManifestFolder manifests_;
  OnPublish on_publish_;
  std::atomic<std::int64_t> last_step_{-1};
  std::mutex mutex_;
  std::map<std::int64_t, StepNote> notes_;  // under the mutex: of steps that may still be committed
};

}  // namespace zinf::train
