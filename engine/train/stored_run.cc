#include "engine/train/stored_run.h"

#include <algorithm>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/str.h"
#include "engine/checkpoint/kept.h"
#include "engine/config/load.h"
#include "engine/model/deepspeed_folder.h"
#include "engine/observe/metrics.h"
#include "engine/train/commit.h"
#include "engine/train/plan_run.h"
#include "engine/train/run_area.h"
#include "nvme/areas.h"

namespace zinf::train {

namespace {

checkpoint::Manifest newest_manifest(const std::string& run_folder) {
  std::error_code error;
  if (!std::filesystem::is_directory(run_folder, error)) {
    throw Error(ErrorKind::kUsage, str("no run folder at ", run_folder),
                "give the folder that zinf train wrote (output_dir or --run-dir)");
  }
  const checkpoint::ManifestFolder::Found found =
      checkpoint::ManifestFolder(run_folder).find(area_name(run_folder));
  for (const std::string& skipped : found.skipped) log::warning(str("skipped ", skipped));
  if (!found.newest) {
    model::refuse_deepspeed(run_folder, "folder");
    throw Error(ErrorKind::kUsage, str("no whole commit in ", run_folder),
                "let the run commit once, or give another folder");
  }
  return *found.newest;
}

}  // namespace

// Kept commits never change, so only the newest one is held.
checkpoint::Manifest StoredRun::choose(const std::string& run_folder,
                                       std::optional<std::int64_t> step) {
  const checkpoint::KeptCheckpoints kept(run_folder);
  const std::vector<std::int64_t> all = kept.steps();
  if (step && std::find(all.begin(), all.end(), *step) != all.end()) {
    kept_ = true;
    return kept.manifest(*step);
  }
  checkpoint::Manifest newest = newest_manifest(run_folder);
  const std::vector<std::string> drives = area_drives(run_folder, newest.area, newest.drives);
  static_cast<void>(find_area(run_folder, drives));  // refuses a copy of another run folder
  hold_.emplace(run_folder, nvme::area_file(drives.at(0), newest.area));
  const checkpoint::ManifestFolder manifests(run_folder);
  newest = hold_->step() ? manifests.read(*hold_->step()) : newest_manifest(run_folder);
  if (!step || *step == newest.step) return newest;
  try {
    return kept.manifest(*step);  // names those that are kept
  } catch (const Error& error) {
    throw Error(ErrorKind::kUsage, error.what(), str("the newest commit is step ", newest.step));
  }
}

StoredRun::StoredRun(const std::string& run_folder, std::optional<std::int64_t> step)
    : manifest_(choose(run_folder, step)),
      config_(config::load_text(manifest_.resolved_config, run_folder + "/config.yaml").config),
      model_(open_model(config_, true)) {
  const model::ModelSpec& spec = model_.model.spec;
  if (model_signature(spec) != manifest_.model) {
    throw Error(ErrorKind::kUsage,
                str("the model in ", model_.folder_path(), " is not the one that this run trained"),
                "restore the folder that model.path names");
  }
  const optim::Format format = optimizer_format(config_, model_.compute_type());
  input_.model = &spec;
  input_.states = state_layouts(format);
  input_.placement.pieces.resize(spec.pieces.size());
  swap::TierOptions tiers;
  for (std::size_t piece = 0; piece < spec.pieces.size(); ++piece) {
    const std::size_t states = spec.pieces[piece].trainable ? input_.states.size() : 1;
    for (std::size_t state = 0; state < states; ++state) {
      plan::Extent extent;
      extent.piece = static_cast<int>(piece);
      extent.state = static_cast<int>(state);
      extent.bytes = round_up(input_.states[state].bytes(spec.pieces[piece].elements), plan::kPage);
      extent.slots = spec.pieces[piece].trainable ? static_cast<int>(config_.checkpoint.slots) : 1;
      extent.page_bytes = input_.states[state].page_bytes();
      programs_.extents.push_back(extent);
      tiers.extents.push_back({extent.bytes, extent.slots, false, extent.page_bytes});
    }
  }
  nvme::StoreOptions store = store_options(config_, manifest_.area).value_or(nvme::StoreOptions{});
  if (store.drives.empty()) {
    store.area = manifest_.area;
    for (const std::string& drive : area_drives(run_folder, manifest_.area, manifest_.drives)) {
      store.drives.emplace_back();
      store.drives.back().path = drive;
    }
  }
  tiers.nvme = store;
  tiers.open_mode = nvme::OpenMode::kRead;
  tiers_ = std::make_unique<swap::Tiers>(tiers);
  if (!manifest_.pages.empty()) {
    pages_ = (kept_ ? checkpoint::KeptCheckpoints(run_folder).manifests()
                    : checkpoint::ManifestFolder(run_folder))
                 .pages(manifest_);
    tiers_->load_pages(manifest_.slot, static_cast<int>(manifest_.extents.size()), pages_,
                       str("step ", manifest_.step));
  }
  states_ = std::make_unique<step::StateAccess>(programs_, input_, format, *tiers_);
}

std::optional<double> logged_loss(const std::string& run_folder, std::int64_t step) {
  const std::string metrics = run_folder + "/metrics.jsonl";
  if (!std::filesystem::exists(metrics)) return std::nullopt;
  for (const observe::StepRecord& record : observe::read_metrics(metrics))
    if (static_cast<std::int64_t>(record.step) == step) return record.loss;
  return std::nullopt;
}

}  // namespace zinf::train
