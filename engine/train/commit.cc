#include "engine/train/commit.h"

#include <cmath>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "engine/base/log.h"
#include "engine/base/signals.h"
#include "engine/base/str.h"
#include "engine/config/reference.h"
#include "engine/model/torch_runtime.h"
#include "engine/observe/metrics.h"
#include "engine/train/run_data.h"

namespace zinf::train {

std::string model_signature(const model::ModelSpec& model) {
  Hasher hash;
  const auto add = [&](const std::string& text) { hash.update(text.data(), text.size() + 1); };
  add(model.family);
  for (const model::PieceSpec& piece : model.pieces) {
    add(str(piece.name, " ", piece.elements, piece.trainable ? " trained" : " frozen"));
    for (const model::TensorSpec& tensor : piece.tensors)
      add(str(tensor.name, " ", tensor.offset, " ", tensor.elements));
  }
  return hash.hex();
}

void note_machine(checkpoint::Manifest& manifest) {
  manifest.library = str("LibTorch ", model::torch_version());
  manifest.instruction_set = model::compute_instruction_set();
  manifest.compute_threads = model::compute_threads();
}

checkpoint::Manifest manifest_base(const config::RunConfig& config, const ModelInput& model,
                                   const plan::Plan& plan, const optim::Optimizer& optimizer,
                                   const data::DataSet& data, const BatchShape& batch,
                                   std::int64_t data_start, const nvme::StoreOptions& store,
                                   std::int64_t steps) {
  checkpoint::Manifest m;
  m.steps = steps;
  m.area = store.area;
  for (const nvme::DriveOptions& drive : store.drives) m.drives.push_back(drive.path);
  for (const plan::Extent& extent : plan.programs.extents) {
    if (extent.kind != plan::ExtentKind::kState) continue;
    const model::PieceSpec& piece = plan.model->pieces[extent.piece];
    m.extents.push_back({piece.name, plan.input.states[extent.state].name, piece.elements,
                         extent.bytes, extent.slots});
  }
  m.model = model_signature(model.model.spec);
  const optim::Format& format = optimizer.format();
  m.format = str(name(format.algorithm), " weights ", name(format.weight), " master ",
                 name(format.master), " moments ", name(format.moments));
  m.data = data_files(data);
  m.data_start = data_start;
  m.resolved_config = resolved_yaml(config);
  note_machine(m);
  m.micro_batch = static_cast<int>(batch.micro);
  m.accumulation = static_cast<int>(batch.accumulation);
  return m;
}

void Committer::note(std::int64_t step, const StepNote& note) {
  constexpr std::size_t kWaiting = 4;  // more steps than can be under way
  const std::lock_guard lock(mutex_);
  notes_[step] = note;
  while (notes_.size() > kWaiting) notes_.erase(notes_.begin());
}

void Committer::publish(swap::Tiers& tiers, std::int64_t step, std::int64_t version, int slot,
                        bool moments_are_zero, bool finished) {
  checkpoint::Manifest manifest = base_;
  manifest.step = step;
  manifest.version = version;
  manifest.slot = slot;
  manifest.moments_are_zero = moments_are_zero;
  manifest.finished = finished;
  manifest.loss = std::nan("");
  {
    const std::lock_guard lock(mutex_);
    if (const auto note = notes_.find(step); note != notes_.end()) {
      manifest.loss = note->second.loss.value_or(std::nan(""));
      manifest.loss_scale = note->second.loss_scale;
    }
  }
  const int extents = static_cast<int>(base_.extents.size());
  const std::string pages = tiers.save_pages(slot, extents);
  observe::sync_metrics(metrics_);
  manifests_.publish(manifest, pages);
  last_step_is(step);
  if (on_publish_) on_publish_(manifest, pages);
}

void Committer::last_step_is(std::int64_t step) {
  last_step_ = step;
  set_last_words(str("the last commit is step ", step));
}

void Committer::commit(Session& session, std::int64_t step, bool finished) {
  step::Trainer& trainer = session.trainer();
  session.states().write_through(trainer.slot(), trainer.moments_are_zero());
  if (session.tiers().store() != nullptr) session.tiers().store()->sync();
  publish(session.tiers(), step, trainer.version(), trainer.slot(), trainer.moments_are_zero(),
          finished);
  trainer.committed();
}

}  // namespace zinf::train
