// The commit that a run goes on from, the newest or a kept one, and its way into the run's area. A
// kept one is copied there, and so is the newest where the config wants other drives or another
// number of slots (relocation.h). Until take() the run is as it was, and a kill leaves it so.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/checkpoint/manifest.h"
#include "engine/config/run_config.h"
#include "engine/plan/planner.h"
#include "engine/train/relocation.h"
#include "engine/train/run_folder.h"
#include "engine/train/session.h"
#include "engine/train/train.h"

namespace zinf::train {

// In this order: constructor, settle(), prepare(), take() with the area open.
class GoingOn {
 public:
  // Looks only. of: the commit that is looked at, in a dry run; none: the newest that there is.
  // Config and folder outlive it. Errors of newest_commit() (resume_check.h); Error(kUsage): no
  // such kept step.
  GoingOn(const config::RunConfig& config, const TrainOptions& options, const RunFolder& folder,
          const std::optional<checkpoint::Manifest>& of);

  // nullptr: a run begins, or this is a dry run. As it will lie in the run's area.
  const checkpoint::Manifest* commit() const { return commit_ ? &*commit_ : nullptr; }
  // The same in a dry run: what the run would go on from.
  const checkpoint::Manifest* would_be() const;
  // What the folder's newest commit was when the run was opened; nullptr: none, or not looked for.
  const checkpoint::Manifest* newest() const { return found_.newest ? &*found_.newest : nullptr; }
  // A dry run looks at this one from now on.
  void look_at(const checkpoint::Manifest& manifest) { commit_ = manifest; }
  // It lies elsewhere, in another layout.
  bool is_copied() const { return source_.has_value() || relocation_.has_value(); }

  const RunArea& area() const { return area_; }
  // Of the run from now on.
  const std::string& area_name() const {
    return relocation_ ? relocation_->move.to.name : area_.name;
  }
  nvme::OpenMode open_mode() const;

  // Drops what a killed process left of another area: before space is looked at.
  void settle();
  // Says that the state will be copied to another area, if so.
  void say_move() const;
  // Makes known, durable, whose the area is that will be opened.
  void prepare();
  // The commit into the area, and the area that it leaves dropped. base: of the run's manifests.
  // false: a signal came while it was copied; the run is as it was.
  bool take(Session& session, const plan::Plan& plan, const nvme::StoreOptions& store,
            const checkpoint::Manifest& base, std::int64_t steps);
  // What the drive gives back from now on is held against what the commit says was written. pages:
  // its page table; empty: it has none, or nothing is verified.
  void restore(Session& session, const std::string& pages) const;

 private:
  checkpoint::ManifestFolder manifests() const {
    return checkpoint::ManifestFolder(folder_.path());
  }
  void go_back(std::int64_t step);
  void relocate();
  bool copy(Session& session, const plan::Plan& plan, const nvme::StoreOptions& store,
            const checkpoint::Manifest& base);

  const config::RunConfig& config_;
  const RunFolder& folder_;
  RunArea area_;
  checkpoint::ManifestFolder::Found found_;  // when the run was opened
  std::optional<checkpoint::Manifest> commit_;
  std::optional<Relocation> relocation_;
  std::optional<checkpoint::Manifest> source_;  // commit_ as it lies elsewhere
  bool goes_back_ = false;                      // to a kept one
};

}  // namespace zinf::train
