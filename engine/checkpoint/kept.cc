#include "engine/checkpoint/kept.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <set>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/str.h"
#include "nvme/area_copy.h"
#include "nvme/area_header.h"
#include "nvme/areas.h"

namespace zinf::checkpoint {

namespace {

std::string partial(const std::string& area) { return area + "-partial"; }

}  // namespace

std::string KeptCheckpoints::area_name(const std::string& run_area, std::int64_t step) {
  return str(run_area, "-kept-", step);
}

Manifest KeptCheckpoints::manifest(std::int64_t step) const {
  const std::vector<std::int64_t> all = steps();
  if (std::find(all.begin(), all.end(), step) == all.end()) {
    std::string list;
    for (const std::int64_t kept : all) list += str(list.empty() ? "" : ", ", kept);
    throw Error(ErrorKind::kUsage, str("no checkpoint of step ", step, " is kept in ", folder_),
                all.empty() ? "none is kept: see checkpoint.keep and checkpoint.keep_every"
                            : str("kept are the steps ", list));
  }
  return manifests_.read(step);
}

KeptCheckpoints::Made KeptCheckpoints::make(const Manifest& live, const std::string& pages,
                                            const std::vector<nvme::FileRange>& ranges,
                                            const std::function<bool(Bytes done)>& go_on) const {
  Manifest kept = live;
  kept.area = area_name(live.area, live.step);
  Made made;
  made.cloned = true;
  made.whole = true;
  remove({live.area, live.drives}, live.step);
  for (std::size_t drive = 0; drive < live.drives.size() && made.whole; ++drive) {
    nvme::AreaCopyRequest request;
    request.from = nvme::area_file(live.drives[drive], live.area);
    request.to = nvme::area_file(live.drives[drive], partial(kept.area));
    request.ranges.push_back({drive, 0, nvme::kAreaDataStart});  // the header
    Bytes wanted = nvme::kAreaDataStart;
    for (const nvme::FileRange& range : ranges) {
      if (range.drive != drive) continue;
      request.ranges.push_back(range);
      wanted += range.bytes;
    }
    const Bytes before = made.bytes;
    const nvme::AreaCopyResult copied =
        nvme::copy_area(request, [&](Bytes done) { return go_on(before + done); });
    made.bytes += copied.bytes;
    made.cloned &= copied.cloned;
    made.whole = copied.bytes == wanted;
  }
  if (!made.whole) {
    for (const std::string& drive : live.drives)
      ::unlink(nvme::area_file(drive, partial(kept.area)).c_str());
    return made;
  }
  for (const std::string& drive : live.drives)
    nvme::rename_durably(nvme::area_file(drive, partial(kept.area)),
                         nvme::area_file(drive, kept.area));
  manifests_.publish(kept, pages, std::numeric_limits<int>::max());
  return made;
}

std::vector<std::int64_t> KeptCheckpoints::prune(const RunAt& run, std::int64_t newest,
                                                 std::int64_t count) const {
  std::vector<std::int64_t> dropped;
  std::vector<std::int64_t> all = steps();
  const auto later = std::upper_bound(all.begin(), all.end(), newest);
  dropped.assign(later, all.end());
  all.erase(later, all.end());
  if (std::ssize(all) > count) dropped.insert(dropped.end(), all.begin(), all.end() - count);
  for (const std::int64_t step : dropped) remove(run, step);
  return dropped;
}

// Of this very folder. One that this was copied from shares all owners but the newest.
bool KeptCheckpoints::is_own(const nvme::AreaMark& mark, const std::string& place) const {
  const auto owner = std::find(owners_.begin(), owners_.end(), mark.owner);
  if (owner == owners_.end()) return false;
  std::error_code error;
  return owner == owners_.begin() || std::filesystem::equivalent(place, folder_, error) ||
         std::filesystem::equivalent(mark.note, folder_, error);
}

// The manifest goes first: without it the rest is nothing. Which drives it names is asked only for
// what was kept in another area, before the state went to this one: in a copied folder they are
// those of the run that it was copied from.
void KeptCheckpoints::remove(const RunAt& run, std::int64_t step) const {
  std::optional<Manifest> kept;
  try {
    kept = manifests_.read(step);
  } catch (const Error&) {
    // Not there, or damaged: then it is looked for where the run is.
  }
  manifests_.remove(step);
  for (const std::string& drive : run.drives)
    ::unlink(nvme::area_file(drive, area_name(run.area, step)).c_str());
  if (!kept || kept->area.starts_with(run.area + "-kept-")) return;
  std::set<std::string> places(kept->drives.begin(), kept->drives.end());
  places.insert(run.drives.begin(), run.drives.end());
  places.insert(folder_);
  for (const std::string& place : places) {
    const std::string file = nvme::area_file(place, kept->area);
    const auto mark = nvme::read_area_mark(file);
    if (!mark) continue;
    if (is_own(*mark, place)) {
      ::unlink(file.c_str());
    } else {
      log::warning(
          str(file, " stays: it may be another run folder's kept checkpoint of step ", step));
    }
  }
}

void KeptCheckpoints::clean(const RunAt& run, bool all) const {
  if (all) {
    for (const std::int64_t step : steps()) remove(run, step);
  }
  std::set<std::string> known;
  for (const std::int64_t step : steps())
    known.insert(area_name(run.area, step) + nvme::kAreaEnding);
  for (const std::string& drive : run.drives) {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(drive, ignored)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(run.area + "-kept-") && name.ends_with(nvme::kAreaEnding) &&
          !known.contains(name))
        ::unlink(entry.path().c_str());
    }
  }
}

}  // namespace zinf::checkpoint
