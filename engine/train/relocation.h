// Going on with the state in another layout than it has: on other drives, or with another number of
// slots. The commit is copied into a new area; the old one goes once the run's manifest names the
// new one. A kill at any moment leaves the one or the other (run_area.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/config/run_config.h"
#include "engine/plan/planner.h"
#include "engine/train/run_area.h"
#include "nvme/store.h"
#include "swap/tiers.h"

namespace zinf::train {

struct Relocation {
  std::string what;  // "drives: /a -> /a /b; checkpoint.slots: 2 -> 1"
  AreaMove move;     // to a new name
};
// nullopt: the newest commit's area can't be found, or serves the config as it is. overwritten: its
// only slot is to be written with something else, so that it does not.
std::optional<Relocation> relocation(const checkpoint::Manifest& newest,
                                     const config::RunConfig& config, bool overwritten = false);

// "/a /b", for messages.
std::string drives_text(const std::vector<std::string>& drives);

// Most slots of any state; frozen ones have one.
int slots_of(const checkpoint::Manifest& manifest);

// The folders that hold a commit's area, see run_area.h.
std::vector<std::string> area_folders(const checkpoint::Manifest& commit,
                                      const config::RunConfig& config);

// The commit's config, with its layout of the area from another.
std::string config_in_layout(const checkpoint::Manifest& commit, const config::RunConfig& config);

// Reads a commit where it lies, page by page verified, and writes it into `slot` of the run's
// tiers; durable when it returns true. false: a signal asks to stop. drives: area_folders(). store:
// the run's, for its settings.
bool copy_commit(const checkpoint::Manifest& commit, const std::string& pages,
                 const std::vector<std::string>& drives, const plan::Plan& plan,
                 const nvme::StoreOptions& store, swap::Tiers& to, int slot);

}  // namespace zinf::train
