#include "engine/train/going_on.h"

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/str.h"
#include "engine/checkpoint/kept.h"
#include "engine/train/resume_check.h"
#include "nvme/areas.h"

namespace zinf::train {

GoingOn::GoingOn(const config::RunConfig& config, const TrainOptions& options,
                 const RunFolder& folder, const std::optional<checkpoint::Manifest>& of)
    : config_(config), folder_(folder), area_(folder.area()) {
  found_.newest = of;
  if (!options.fresh && !of) {
    found_ = newest_commit(manifests(), config_.io.verify ? area_.name : "", !options.resume_from);
    if (!options.dry_run) commit_ = found_.newest;
  }
  if (options.resume_from) go_back(*options.resume_from);
  if (found_.newest && !of) relocate();
}

const checkpoint::Manifest* GoingOn::would_be() const {
  return commit_ ? &*commit_ : found_.newest ? &*found_.newest : nullptr;
}

// --resume-from: the kept commit will go into the slot that does not hold the newest one.
void GoingOn::go_back(std::int64_t step) {
  if (commit_ && commit_->step == step) return;
  const int free_slot = commit_ ? 1 - commit_->slot : 0;
  source_ = checkpoint::KeptCheckpoints(folder_.path()).manifest(step);
  if (!is_kept_here(folder_.path(), source_->area, source_->drives)) {
    throw Error(ErrorKind::kFailed,
                str("the manifest of the kept step ", step,
                    " belongs to another run: it names the area ", source_->area),
                "go on from another step");
  }
  if (commit_ && step > commit_->step)
    log::warning(str("step ", step, " is later than the newest commit, step ", commit_->step));
  commit_ = source_;
  commit_->area = area_.name;
  commit_->slot = free_slot;
  goes_back_ = true;
}

void GoingOn::relocate() {
  if (found_.newest->area != area_.name) return;  // another run's, which check_resume() refuses
  // With one slot a kept commit would go over the newest one, which its manifest still names.
  const bool overwritten = goes_back_ && config_.checkpoint.slots == 1;
  relocation_ = relocation(*found_.newest, config_, overwritten);
  if (!relocation_) return;
  if (!found_.skipped.empty() && !goes_back_) {
    // Of the two commits that there are, the older one would have to be known as whole in both
    // areas.
    throw Error(ErrorKind::kUsage,
                str("resume: the newest commit is not whole, and the state lies elsewhere than the "
                    "config says: ",
                    relocation_->what),
                "go on with the run's own drives and slots once, then with others");
  }
  if (!commit_) return;
  if (!source_) source_ = commit_;
  commit_->area = relocation_->move.to.name;
  commit_->slot = 0;
}

nvme::OpenMode GoingOn::open_mode() const {
  // What is copied may be all that is left.
  const bool there = nvme::area_is_there(area_name(), state_drives(config_));
  return commit_ && (there || !source_) ? nvme::OpenMode::kReopen : nvme::OpenMode::kReplace;
}

void GoingOn::settle() {
  // Else it is the older area that the run goes on from, because the newest commit is damaged.
  if (!found_.newest || found_.newest->area == area_.name) settle_move(folder_.path(), area_);
}

void GoingOn::say_move() const {
  if (relocation_)
    log::info(str("resume: ", relocation_->what, ": the state is copied to a new area"));
}

void GoingOn::prepare() {
  if (!relocation_) return keep_area(folder_.path(), area_);
  const AreaPlace& from = relocation_->move.from;
  for (const std::string& drive : from.drives) {
    if (const std::string file = nvme::area_file(drive, from.name); nvme::area_in_use(file)) {
      throw Error(ErrorKind::kFailed, str("swap area ", file, " is in use by another process"),
                  "wait for it to end");
    }
  }
  say_move();
  area_.move = relocation_->move;
  keep_area(folder_.path(), area_);
  // What it is moved from is dropped only with this mark, which no copy of the run folder knows.
  try {
    mark_area(area_, from.name, from.drives);
  } catch (const Error& error) {
    log::warning(str("what the state is moved from will stay: ", error.what()));
  }
}

bool GoingOn::copy(Session& session, const plan::Plan& plan, const nvme::StoreOptions& store,
                   const checkpoint::Manifest& base) {
  const checkpoint::KeptCheckpoints kept(folder_.path());
  std::string pages;
  try {
    pages = (goes_back_ ? kept.manifests() : manifests()).pages(*source_);
  } catch (const Error& error) {
    if (config_.io.verify) throw;
    log::warning(str("resume: copied without checksums: ", error.what()));
  }
  if (!copy_commit(*source_, pages, area_folders(*source_, config_), plan, store, session.tiers(),
                   commit_->slot))
    return false;
  commit_->drives = base.drives;
  commit_->extents = base.extents;
  commit_->resolved_config = config_in_layout(*source_, config_);
  if (pages.empty()) commit_->pages.clear();
  manifests().publish(*commit_, pages);
  return true;
}

void GoingOn::restore(Session& session, const std::string& pages) const {
  const int extents = static_cast<int>(commit_->extents.size());
  if (!pages.empty())
    session.tiers().load_pages(commit_->slot, extents, pages, str("step ", commit_->step));
  session.states().restore(commit_->slot, commit_->moments_are_zero);
}

bool GoingOn::take(Session& session, const plan::Plan& plan, const nvme::StoreOptions& store,
                   const checkpoint::Manifest& base, std::int64_t steps) {
  if (source_ && !copy(session, plan, store, base)) return false;
  const std::string pages = config_.io.verify ? manifests().pages(*commit_) : "";
  if (config_.io.verify && pages.empty())
    log::warning("resume: the commit has no checksums; frozen weights never get any");
  if (!source_) check_older_commit(found_, session.tiers(), pages, config_.io.verify);
  restore(session, pages);
  // Of the run when it was shorter, or of a future that is given up.
  if (goes_back_ || commit_->step < steps) folder_.drop_summary();
  // Those that were skipped or given up: their slots are written next.
  manifests().remove_after(commit_->step);
  area_.name = commit_->area;
  settle_move(folder_.path(), area_);
  log::info(str("resumed after step ", commit_->step, " of ", steps));
  return true;
}

}  // namespace zinf::train
