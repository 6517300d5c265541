#include "engine/train/kept_runs.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/str.h"
#include "engine/train/finish.h"
#include "engine/train/stored_run.h"
#include "nvme/area_header.h"
#include "nvme/areas.h"
#include "nvme/directory.h"
#include "nvme/drive_room.h"

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
model::DType kept_export_type(const config::RunConfig& config) {
  return export_type(config, model::DType::kBFloat16);
}

// Of a file as long as it will be: holes that writes are still to fill.
Bytes unreserved_bytes(const std::string& file) {
  std::error_code absent;
  const Bytes bytes = std::filesystem::file_size(file, absent);
  return absent ? 0 : bytes - std::min(bytes, nvme::taken_bytes(file));
}

// there: copies that are kept already.
void add_copies_and_exports(const config::RunConfig& config, const ModelInput& model,
                            std::int64_t there, SpaceNeeds& needs) {
  // One more than are kept: an old copy goes when the new one is whole.
  if (config.checkpoint.keep > 1)
    needs.copies = std::max<std::int64_t>(1, config.checkpoint.keep - there);
  const Bytes parameters = static_cast<Bytes>(model.model.spec.parameters());
  if (model.folder && config.export_.at_end) {
    const bool fp32 = export_type(config, model.compute_type()) == model::DType::kFloat32;
    needs.exports += parameters * (fp32 ? sizeof(float) : sizeof(std::uint16_t));
  }
  if (model.folder && config.export_.at_kept_checkpoints) {
    needs.exports +=
        parameters * model::size_of(kept_export_type(config)) * static_cast<Bytes>(needs.copies);
  }
}

// What drop_run() removes from a drive's folder, the area that is replaced included.
Bytes dropped_bytes(const std::string& folder, const std::string& area) {
  Bytes sum = 0;
  for (const nvme::AreaInfo& there : nvme::list_areas(folder)) {
    const std::string name = std::filesystem::path(there.path).stem().string();
    if (name == area || name == area + "-scratch" || name.starts_with(area + "-kept-"))
      sum += there.bytes;
  }
  return sum;
}

Bytes exported_bytes(const std::string& run_folder) {
  Bytes sum = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(run_folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name != "model" && !name.starts_with("model-step-")) continue;
    for (const auto& file : std::filesystem::directory_iterator(entry.path(), error))
      sum += nvme::taken_bytes(file.path().string());
  }
  return sum;
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
  add_copies_and_exports(config, model, static_cast<std::int64_t>(kept.steps().size()), needs);
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
    Bytes freed = 0;
  };
  std::map<std::uint64_t, Need> by_file_system;
  const auto add = [&](const std::string& folder, Bytes bytes, Bytes unreserved, Bytes freed) {
    Need& need = by_file_system[nvme::file_system_id(folder)];
    if (need.folder.empty()) need.folder = folder;
    need.bytes += bytes + unreserved;
    need.unreserved += unreserved;
    need.freed += freed;
  };
  for (std::size_t drive = 0; drive < needs.drives.size(); ++drive) {
    add(needs.drives[drive], needs.kept_on_drive[drive] * static_cast<Bytes>(needs.copies),
        needs.unreserved[drive], needs.freed.empty() ? 0 : needs.freed[drive]);
  }
  add(needs.run_folder, needs.exports, 0, needs.freed_in_run_folder);
  for (const auto& [id, need] : by_file_system) {
    const Bytes free = nvme::free_bytes(need.folder) + need.freed;
    if (need.bytes <= free) continue;
    throw Error(ErrorKind::kDoesNotFit,
                str("not enough space in ", need.folder, " for kept checkpoints and exports",
                    need.unreserved == 0 ? ""
                    : needs.planned      ? " beside the swap area"
                                         : " beside the swap area, which could not be reserved",
                    ": needed ", format_bytes(need.bytes), " (", need.bytes, " bytes), free ",
                    format_bytes(free), " (", free, " bytes)"),
                str("free ", format_bytes(need.bytes - free),
                    " there, or set a smaller checkpoint.keep, or export.at_end: false"));
  }
}

void check_space_after_drop(const config::RunConfig& config, const ModelInput& model,
                            const plan::Plan& plan, const nvme::StoreOptions& store) {
  Bytes copy = 0;
  for (const plan::Extent& extent : plan.programs.extents) {
    if (extent.kind == plan::ExtentKind::kState) copy += extent.bytes;
  }
  SpaceNeeds needs;
  needs.run_folder = config.output_dir;
  const std::vector<double> shares = nvme::planned_shares(store, plan.nvme_bytes, false);
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const auto part = [&](Bytes bytes) {
      return static_cast<Bytes>(static_cast<double>(bytes) * shares[i]);
    };
    needs.drives.push_back(store.drives[i].path);
    needs.unreserved.push_back(part(plan.nvme_bytes));
    needs.kept_on_drive.push_back(part(copy) + nvme::kAreaDataStart);
    needs.freed.push_back(dropped_bytes(store.drives[i].path, store.area));
  }
  needs.planned = true;
  needs.freed_in_run_folder = exported_bytes(config.output_dir);
  if (std::find(needs.drives.begin(), needs.drives.end(), config.output_dir) == needs.drives.end())
    needs.freed_in_run_folder += dropped_bytes(config.output_dir, store.area);
  add_copies_and_exports(config, model, 0, needs);
  check_space_for(needs);
}

std::optional<KeeperOptions> prepare_keeping(const config::RunConfig& config,
                                             const ModelInput& model,
                                             const plan::Hardware& hardware,
                                             const checkpoint::Manifest& base, const RunArea& area,
                                             const swap::Tiers& tiers) {
  const checkpoint::RunAt at{base.area, base.drives};
  const checkpoint::KeptCheckpoints kept(config.output_dir, area.owners);
  kept.clean(at, false);
  const int extents = static_cast<int>(base.extents.size());
  check_space_for(space_needs(config, model, at, tiers, extents, kept));
  if (config.checkpoint.keep <= 1) return std::nullopt;
  KeeperOptions options = keeper_options(config, model, hardware, tiers, extents);
  options.owners = area.owners;
  return options;
}

void export_kept(const config::RunConfig& config, const std::string& run_folder, std::int64_t step,
                 const std::atomic<bool>& give_up) {
  StoredRun stored(run_folder, step);
  const std::string to = kept_export(run_folder, step);
  std::filesystem::remove_all(to);
  const model::ExportResult exported =
      export_model(stored.model(), stored.states(), stored.manifest().slot, to,
                   kept_export_type(config), shard_bytes(config), &give_up);
  log::info(str("step ", step, " is exported to ", exported.path));
}

}  // namespace zinf::train
