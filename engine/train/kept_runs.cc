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
#include "nvme/area_header.h"
#include "nvme/areas.h"
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

namespace {
// Of a file as long as it will be: holes that writes are still to fill.
Bytes unreserved_bytes(const std::string& file) {
  std::error_code absent;
  const Bytes bytes = std::filesystem::file_size(file, absent);
  return absent ? 0 : bytes - std::min(bytes, nvme::taken_bytes(file));
}
}  // namespace

SpaceNeeds space_needs(const config::RunConfig& config, const ModelInput& model,
                       const checkpoint::RunAt& at, const swap::Tiers& tiers, int extents,
                       const checkpoint::KeptCheckpoints& kept) {
  SpaceNeeds needs;
  needs.run_folder = config.output_dir;
  needs.drives = at.drives;
  for (const std::string& drive : at.drives) {
    needs.unreserved.push_back(unreserved_bytes(nvme::area_file(drive, at.area)) +
                               unreserved_bytes(nvme::area_file(drive, at.area + "-scratch")));
  }
  needs.kept_on_drive.assign(at.drives.size(), nvme::kAreaDataStart);
  for (const nvme::FileRange& range : tiers.file_ranges(0, extents))
    needs.kept_on_drive[range.drive] += range.bytes;
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

KeeperOptions keeper_options(const config::RunConfig& config, const ModelInput& model,
                             const plan::Hardware& hardware, const swap::Tiers& tiers,
                             int extents) {
  KeeperOptions options;
  options.run_folder = config.output_dir;
  options.count = config.checkpoint.keep - 1;
  options.bytes_per_second = hardware.nvme_write / 4;
  for (int slot = 0; slot < 2; ++slot)
    options.ranges[static_cast<std::size_t>(slot)] = tiers.file_ranges(slot, extents);
  if (config.export_.at_kept_checkpoints && model.folder) {
    options.after = [&config](std::int64_t step, const std::atomic<bool>& give_up) {
      export_kept(config, config.output_dir, step, give_up);
    };
  }
  return options;
}

void check_space_for(const SpaceNeeds& needs) {
  struct Need {
    std::string folder;
    Bytes bytes = 0;
    Bytes unreserved = 0;  // of them
  };
  std::map<std::uint64_t, Need> by_file_system;
  const auto add = [&](const std::string& folder, Bytes bytes, Bytes unreserved) {
    Need& need = by_file_system[nvme::file_system_id(folder)];
    if (need.folder.empty()) need.folder = folder;
    need.bytes += bytes + unreserved;
    need.unreserved += unreserved;
  };
  for (std::size_t drive = 0; drive < needs.drives.size(); ++drive) {
    add(needs.drives[drive], needs.kept_on_drive[drive] * static_cast<Bytes>(needs.copies),
        needs.unreserved[drive]);
  }
  add(needs.run_folder, needs.exports, 0);
  for (const auto& [id, need] : by_file_system) {
    const Bytes free = nvme::free_bytes(need.folder);
    if (need.bytes <= free) continue;
    throw Error(ErrorKind::kDoesNotFit,
                str("not enough space in ", need.folder, " for kept checkpoints and exports",
                    need.unreserved > 0 ? " beside the swap area, which could not be reserved" : "",
                    ": needed ", format_bytes(need.bytes), " (", need.bytes, " bytes), free ",
                    format_bytes(free), " (", free, " bytes)"),
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

void export_kept(const config::RunConfig& config, const std::string& run_folder, std::int64_t step,
                 const std::atomic<bool>& give_up) {
  StoredRun stored(run_folder, step);
  const std::string to = kept_export(run_folder, step);
  std::filesystem::remove_all(to);
  const model::ExportResult exported = export_model(
      stored.model(), stored.states(), stored.manifest().slot, to,
      config.export_.dtype ? export_type(config, model::DType::kBFloat16) : model::DType::kBFloat16,
      shard_bytes(config), &give_up);
  log::info(str("step ", step, " is exported to ", exported.path));
}

}  // namespace zinf::train
