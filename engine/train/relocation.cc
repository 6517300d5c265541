#include "engine/train/relocation.h"

#include <algorithm>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/signals.h"
#include "engine/base/str.h"
#include "engine/config/load.h"
#include "engine/config/reference.h"
#include "engine/observe/atomic_file.h"
#include "engine/train/read_slot.h"
#include "engine/train/run_folder.h"
#include "nvme/areas.h"

namespace zinf::train {

std::string drives_text(const std::vector<std::string>& drives) {
  std::string text;
  for (const std::string& drive : drives) text += (text.empty() ? "" : " ") + drive;
  return text;
}

int slots_of(const checkpoint::Manifest& manifest) {
  int most = 1;
  for (const checkpoint::ManifestExtent& extent : manifest.extents)
    most = std::max(most, extent.slots);
  return most;
}

std::vector<std::string> area_folders(const checkpoint::Manifest& commit,
                                      const config::RunConfig& config) {
  return area_folders(config.output_dir, commit.area, commit.drives, state_drives(config));
}

std::optional<Relocation> relocation(const checkpoint::Manifest& newest,
                                     const config::RunConfig& config, bool overwritten) {
  const std::vector<std::string> from = area_folders(newest, config), to = state_drives(config);
  if (!nvme::area_is_there(newest.area, from)) return std::nullopt;
  Relocation result;
  if (from != to) result.what = str("drives: ", drives_text(from), " -> ", drives_text(to));
  if (slots_of(newest) != config.checkpoint.slots) {
    result.what += str(result.what.empty() ? "" : "; ", "checkpoint.slots: ", slots_of(newest),
                       " -> ", config.checkpoint.slots);
  }
  if (result.what.empty() && overwritten) result.what = "checkpoint.slots: 1";
  if (result.what.empty()) return std::nullopt;
  result.move = {{newest.area, from}, {new_area_name(), to}};
  return result;
}

std::string config_in_layout(const checkpoint::Manifest& commit, const config::RunConfig& config) {
  config::RunConfig before = config::load_text(commit.resolved_config, "the run's config").config;
  before.memory.nvme = config.memory.nvme;
  before.checkpoint.slots = config.checkpoint.slots;
  return resolved_yaml(before);
}

bool copy_commit(const checkpoint::Manifest& commit, const std::string& pages,
                 const std::vector<std::string>& drives, const plan::Plan& plan,
                 const nvme::StoreOptions& store, swap::Tiers& to, int slot) {
  swap::TierOptions options;
  Bytes all = 0;
  for (const plan::Extent& extent : plan.programs.extents) {
    if (extent.kind != plan::ExtentKind::kState) continue;
    const int slots = commit.extents.at(options.extents.size()).slots;
    options.extents.push_back({extent.bytes, slots, false, extent.page_bytes});
    all += extent.bytes;
  }
  options.nvme = store;
  options.nvme->area = commit.area;
  options.nvme->drives.clear();
  for (const std::string& drive : drives) {
    const auto known = std::find_if(store.drives.begin(), store.drives.end(),
                                    [&](const auto& of_run) { return of_run.path == drive; });
    options.nvme->drives.push_back(known != store.drives.end() ? *known : nvme::DriveOptions{});
    options.nvme->drives.back().path = drive;
  }
  options.open_mode = nvme::OpenMode::kRead;
  swap::Tiers from(options);
  const int extents = static_cast<int>(options.extents.size());
  if (!pages.empty()) from.load_pages(commit.slot, extents, pages, str("step ", commit.step));
  Bytes copied = 0;
  constexpr double kSeconds = 10;  // between two lines
  double said = now_seconds();
  const auto write = [&](int extent, Bytes at, const std::byte* memory, Bytes bytes) {
    wait_for_io(
        [&](nvme::IoCallback done) { to.write(extent, slot, at, memory, bytes, std::move(done)); });
    copied += bytes;
    if (now_seconds() - said < kSeconds) return;
    said = now_seconds();
    log::info(str("resume: ", format_bytes(copied), " of ", format_bytes(all), " of step ",
                  commit.step, " are copied"));
  };
  read_slot(from, commit.slot, extents, write, [] { return stop_requested() == 0; });
  if (stop_requested() != 0) return false;
  to.store()->sync();
  // The new files' names too: the old area goes soon.
  for (const nvme::DriveOptions& drive : store.drives) observe::sync_folder(drive.path);
  return true;
}

}  // namespace zinf::train
