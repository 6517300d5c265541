#include "engine/train/kept_runs.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/str.h"
#include "engine/train/finish.h"
#include "engine/train/read_slot.h"
#include "engine/train/stored_run.h"
#include "nvme/directory.h"

namespace zinf::train {

config::Cadence keep_cadence(const config::RunConfig& config) {
  if (config.checkpoint.keep_every) return *config.checkpoint.keep_every;
  if (config.checkpoint.every) return *config.checkpoint.every;
  return {std::nullopt, 600.0};
}

std::string kept_export(const std::string& run_folder, std::int64_t step) {
  return str(run_folder, "/model-step-", step);
}

SpaceNeeds space_needs(const config::RunConfig& config, const ModelInput& model,
                       std::vector<std::string> drives, std::vector<Bytes> kept_on_drive,
                       const checkpoint::KeptCheckpoints& kept) {
  SpaceNeeds needs;
  needs.run_folder = config.output_dir;
  needs.drives = std::move(drives);
  needs.kept_on_drive = std::move(kept_on_drive);
  // One more than are kept: an old copy goes when the new one is whole.
  if (config.checkpoint.keep > 1) {
    const auto there = static_cast<std::int64_t>(kept.steps().size());
    needs.copies = std::max<std::int64_t>(1, config.checkpoint.keep - there);
  }
  const Bytes parameters = static_cast<Bytes>(model.model.spec.parameters());
  if (model.folder && config.export_.at_end) {
    const bool fp32 = export_type(config, model.compute_type()) == model::DType::kFloat32;
    needs.exports += parameters * (fp32 ? sizeof(float) : sizeof(std::uint16_t));
  }
  if (model.folder && config.export_.at_kept_checkpoints)
    needs.exports += parameters * sizeof(std::uint16_t) * static_cast<Bytes>(needs.copies);
  return needs;
}

void check_space_for(const SpaceNeeds& needs) {
  struct Need {
    std::string folder;
    Bytes bytes = 0;
  };
  std::map<std::uint64_t, Need> by_file_system;
  const auto add = [&](const std::string& folder, Bytes bytes) {
    Need& need = by_file_system[nvme::file_system_id(folder)];
    if (need.folder.empty()) need.folder = folder;
    need.bytes += bytes;
  };
  for (std::size_t drive = 0; drive < needs.drives.size(); ++drive)
    add(needs.drives[drive], needs.kept_on_drive[drive] * static_cast<Bytes>(needs.copies));
  add(needs.run_folder, needs.exports);
  for (const auto& [id, need] : by_file_system) {
    const Bytes free = nvme::free_bytes(need.folder);
    if (need.bytes <= free) continue;
    throw Error(ErrorKind::kDoesNotFit,
                str("not enough space in ", need.folder,
                    " for kept checkpoints and exports: needed ", format_bytes(need.bytes), " (",
                    need.bytes, " bytes), free ", format_bytes(free), " (", free, " bytes)"),
                str("free ", format_bytes(need.bytes - free),
                    " there, or set a smaller checkpoint.keep, or export.at_end: false"));
  }
}

void restore_kept(const checkpoint::Manifest& kept, const std::string& pages,
                  const plan::Plan& plan, nvme::StoreOptions store, swap::Tiers& to, int slot) {
  swap::TierOptions options;
  for (const plan::Extent& extent : plan.programs.extents) {
    if (extent.kind == plan::ExtentKind::kState)
      options.extents.push_back({extent.bytes, extent.slots, false, extent.page_bytes});
  }
  store.area = kept.area;
  options.nvme = store;
  options.open_mode = nvme::OpenMode::kRead;
  swap::Tiers from(options);
  const int extents = static_cast<int>(options.extents.size());
  if (!pages.empty()) from.load_pages(kept.slot, extents, pages, str("the kept step ", kept.step));
  read_slot(from, kept.slot, extents,
            [&](int extent, Bytes at, const std::byte* memory, Bytes bytes) {
              wait_for_io([&](nvme::IoCallback done) {
                to.write(extent, slot, at, memory, bytes, std::move(done));
              });
            });
  to.store()->sync();
}

void export_kept(const config::RunConfig& config, const std::string& run_folder,
                 std::int64_t step) {
  StoredRun stored(run_folder, step);
  const std::string to = kept_export(run_folder, step);
  std::filesystem::remove_all(to);
  const model::ExportResult exported = export_model(
      stored.model(), stored.states(), stored.manifest().slot, to,
      config.export_.dtype ? export_type(config, model::DType::kBFloat16) : model::DType::kBFloat16,
      shard_bytes(config));
  log::info(str("step ", step, " is exported to ", exported.path));
}

}  // namespace zinf::train
