#include "engine/train/run_area.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/str.h"
#include "engine/checkpoint/kept.h"
#include "engine/checkpoint/manifest.h"
#include "engine/observe/atomic_file.h"
#include "nvme/area_header.h"
#include "nvme/areas.h"

namespace zinf::train {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

constexpr const char* kMagic = "zinf-run-area";
constexpr int kFormat = 1;

std::string note_file(const std::string& run_folder) { return run_folder + "/area"; }

std::string canonical(const std::string& folder) {
  std::error_code error;
  std::string path = fs::weakly_canonical(folder, error).string();
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::string hex(const nvme::AreaOwner& owner) {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(owner[0]),
                static_cast<unsigned long long>(owner[1]));
  return text;
}

nvme::AreaOwner from_hex(const std::string& text) {
  if (text.size() != 32 || text.find_first_not_of("0123456789abcdef") != std::string::npos)
    throw Error(ErrorKind::kFailed, str("expected 32 hexadecimal digits, found \"", text, "\""));
  return {std::stoull(text.substr(0, 16), nullptr, 16), std::stoull(text.substr(16), nullptr, 16)};
}

Json place_json(const AreaPlace& place) { return {{"area", place.name}, {"drives", place.drives}}; }
AreaPlace place_of(const Json& json) { return {json.at("area"), json.at("drives")}; }

std::string note_text(const RunArea& area) {
  Json json;
  json["magic"] = kMagic;
  json["format"] = kFormat;
  json["area"] = area.name;
  json["owners"] = Json::array();
  for (const nvme::AreaOwner& owner : area.owners) json["owners"].push_back(hex(owner));
  json["folder"] = area.folder;
  if (area.move)
    json["move"] = {{"from", place_json(area.move->from)}, {"to", place_json(area.move->to)}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::optional<RunArea> read_note(const std::string& run_folder) {
  const std::string file = note_file(run_folder);
  if (std::error_code error; !fs::exists(file, error)) return std::nullopt;
  std::string why;
  try {
    const Json json = Json::parse(observe::read_file(file));
    if (json.at("magic") != kMagic || json.at("format") != kFormat) {
      throw Error(ErrorKind::kFailed,
                  str("expected ", kMagic, " of format ", kFormat, ", found ",
                      json.at("magic").dump(), " of format ", json.at("format").dump()));
    }
    RunArea area;
    area.name = json.at("area");
    for (const Json& owner : json.at("owners")) area.owners.push_back(from_hex(owner));
    area.folder = json.at("folder");
    if (json.contains("move"))
      area.move = {place_of(json.at("move").at("from")), place_of(json.at("move").at("to"))};
    return area;
  } catch (const std::exception& error) {
    why = error.what();
  }
  throw Error(ErrorKind::kFailed, str(file, " can't be read: ", why),
              "put it back; or remove it, then the newest commit tells the area");
}

// Without the file the newest commit tells the name.
std::optional<RunArea> known_area(const std::string& run_folder) {
  auto area = read_note(run_folder);
  if (area && !area->move) return area;
  const auto newest = checkpoint::ManifestFolder(run_folder).find().newest;
  if (area) {
    area->name =
        newest && newest->area == area->move->to.name ? newest->area : area->move->from.name;
    return area;
  }
  if (!newest) return std::nullopt;
  return RunArea{newest->area, {}, canonical(run_folder)};
}

bool is_owner(const RunArea& area, const nvme::AreaMark& mark) {
  return area.owners.empty()
             ? mark.note == area.folder
             : std::find(area.owners.begin(), area.owners.end(), mark.owner) != area.owners.end();
}

struct MarkedFile {
  std::string path;
  nvme::AreaMark mark;
};
// A file of the area with the mark of an owner that this folder does not know.
std::optional<MarkedFile> other_owner(const RunArea& area, const std::vector<std::string>& drives) {
  for (const std::string& drive : drives) {
    const std::string file = nvme::area_file(drive, area.name);
    const auto mark = nvme::read_area_mark(file);
    if (mark && !is_owner(area, *mark)) return MarkedFile{file, *mark};
  }
  return std::nullopt;
}

void refuse_other_owner(const RunArea& area, const std::vector<std::string>& drives) {
  const auto file = other_owner(area, drives);
  if (!file) return;
  throw Error(
      ErrorKind::kFailed,
      str("swap area ", file->path, " belongs to another run, in ", file->mark.note,
          ": two run folders never share an area"),
      "go on in that folder, put this run's own area back, or --fresh, which begins a run with an "
      "area of its own");
}

// Where files of the run's area may be: on the config's drives, and if they are not all there, also
// where its newest commit was written.
std::vector<std::string> places_of(const std::string& run_folder, const RunArea& area,
                                   std::vector<std::string> drives) {
  const auto newest = checkpoint::ManifestFolder(run_folder).find().newest;
  if (!newest) return drives;
  for (const std::string& drive : area_folders(run_folder, area.name, newest->drives, drives)) {
    if (std::find(drives.begin(), drives.end(), drive) == drives.end()) drives.push_back(drive);
  }
  return drives;
}

struct FileId {
  dev_t device = 0;
  ino_t file = 0;
  bool operator==(const FileId&) const = default;
};

std::optional<FileId> file_id(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return std::nullopt;
  return FileId{info.st_dev, info.st_ino};
}

bool same_folder(const std::string& a, const std::string& b) {
  const auto first = file_id(a), second = file_id(b);
  return a == b || (first && first == second);
}

// Whether one file of this name is in some folder of both.
bool same_file(const std::string& area, const std::vector<std::string>& a,
               const std::vector<std::string>& b) {
  for (const std::string& first : a) {
    const auto id = file_id(nvme::area_file(first, area));
    for (const std::string& second : b) {
      if (id && id == file_id(nvme::area_file(second, area))) return true;
    }
  }
  return false;
}

// Another folder, where this one once was, has the very area that this one would use, or keeps a
// checkpoint of its own beside it, which this one does not know.
bool shared_with(const std::string& other, const RunArea& area,
                 const std::vector<std::string>& drives) {
  try {
    const auto theirs = known_area(other);
    if (!theirs) return false;
    std::vector<std::string> their_drives{other};
    if (const auto newest = checkpoint::ManifestFolder(other).find().newest)
      their_drives = newest->drives;
    if (theirs->name == area.name) return same_file(area.name, their_drives, drives);
    const checkpoint::KeptCheckpoints kept(other);
    for (const std::int64_t step : kept.steps()) {
      const checkpoint::Manifest manifest = kept.manifest(step);
      if (manifest.area.starts_with(area.name + "-kept-") &&
          same_file(manifest.area, manifest.drives, drives))
        return true;
    }
    return false;
  } catch (const Error&) {
    return true;  // it can't be told
  }
}

// Those that the area's files are marked with, else a new one.
std::vector<nvme::AreaOwner> owners_in(const std::vector<std::string>& drives,
                                       const std::string& area) {
  std::vector<nvme::AreaOwner> owners;
  for (const std::string& drive : drives) {
    if (const auto mark = nvme::read_area_mark(nvme::area_file(drive, area)))
      owners.push_back(mark->owner);
  }
  if (owners.empty()) owners.push_back(nvme::make_area_id());
  return owners;
}

std::string area_name_of(const nvme::AreaOwner& id) { return str("run-", hex(id).substr(0, 12)); }

RunArea new_area(const std::string& run_folder, const std::vector<std::string>& drives) {
  const nvme::AreaOwner owner = nvme::make_area_id();
  RunArea area{area_name_of(owner), {owner}, canonical(run_folder)};
  // The folder may have been moved, and its run may go on elsewhere: what it left is not dropped.
  for (const std::string& drive : drives) {
    for (const nvme::AreaInfo& left : nvme::list_areas(drive)) {
      const auto mark = nvme::read_area_mark(left.path);
      if (!mark || mark->note != area.folder || left.in_use) continue;
      const std::string name = fs::path(left.path).stem().string();
      log::warning(str(left.path, " (", format_bytes(left.bytes), ") is of an earlier run in ",
                       run_folder, "; unless that run was moved elsewhere: zinf doctor ", drive,
                       " --remove ", name));
    }
  }
  return area;
}

}  // namespace

std::string area_name(const std::string& run_folder) {
  const auto area = known_area(run_folder);
  return area ? area->name : "";
}

std::vector<std::string> areas_of(const std::string& run_folder) {
  std::vector<std::string> names;
  if (const auto area = known_area(run_folder)) {
    names.push_back(area->name);
    if (area->move) names.insert(names.end(), {area->move->from.name, area->move->to.name});
  }
  const checkpoint::KeptCheckpoints kept(run_folder);
  for (const std::int64_t step : kept.steps()) {
    try {
      names.push_back(kept.manifest(step).area);
    } catch (const Error&) {
      // A damaged one names none.
    }
  }
  return names;
}

RunArea find_area(const std::string& run_folder, const std::vector<std::string>& drives) {
  const auto found = known_area(run_folder);
  if (!found) return new_area(run_folder, drives);
  const std::vector<std::string> places = places_of(run_folder, *found, drives);
  refuse_other_owner(*found, places);
  RunArea area = *found;
  const std::string here = canonical(run_folder);
  if (!same_folder(area.folder, here)) {
    if (shared_with(area.folder, area, places)) {
      throw Error(ErrorKind::kUsage,
                  str("run folder ", here, " is a copy of ", area.folder,
                      ", which uses the same swap area (", area.name,
                      "): two run folders never share an area"),
                  "go on in the other folder, or remove that one; or --fresh here, which begins a "
                  "run with an area of its own");
    }
    // Its own mark from now on: a copy that still has the old one is refused.
    area.owners.insert(area.owners.begin(), nvme::make_area_id());
    area.folder = here;
  }
  if (area.owners.empty()) area.owners = owners_in(places, area.name);
  return area;
}

RunArea area_to_begin(const std::string& run_folder, const std::vector<std::string>& drives) {
  const auto found = known_area(run_folder);
  if (!found || !same_folder(found->folder, canonical(run_folder)) || other_owner(*found, drives))
    return new_area(run_folder, drives);
  // The area that is dropped lies elsewhere: one of the same name here could be taken for it later.
  const auto newest = checkpoint::ManifestFolder(run_folder).find().newest;
  if (newest && newest->drives != drives && !nvme::area_is_there(found->name, drives))
    return new_area(run_folder, drives);
  RunArea area = *found;
  if (area.owners.empty()) area.owners = owners_in(drives, area.name);
  return area;
}

void keep_area(const std::string& run_folder, const RunArea& area) {
  const auto before = read_note(run_folder);
  if (before == area) return;
  if (before && before->name == area.name && before->folder != area.folder) {
    log::info(str("run folder ", area.folder, " was moved from ", before->folder,
                  ": its swap area ", area.name, " goes with it"));
  }
  observe::write_file_atomically(note_file(run_folder), note_text(area),
                                 observe::Durability::kSynced);
}

std::string new_area_name() { return area_name_of(nvme::make_area_id()); }

namespace {

// false: it may be another's, or can't be removed now, which has been said.
bool remove_left_area(const RunArea& area, const std::string& drive, const std::string& name,
                      bool may_be_unmarked) {
  const std::string file = nvme::area_file(drive, name);
  std::error_code error;
  const bool drive_is_there = fs::exists(drive, error);
  if (drive_is_there && !fs::exists(file, error)) return true;
  const auto mark = nvme::read_area_mark(file);
  std::string why =
      drive_is_there ? "it has the mark of another run folder, or none" : "the drive is not there";
  // A copy of this folder knows the older marks too.
  if (mark ? mark->owner == area.owners.front() : may_be_unmarked) {
    try {
      nvme::remove_area(file);
      return true;
    } catch (const Error& refused) {
      why = refused.what();
    }
  }
  log::warning(str("the area that the state was moved from, or to in vain, stays: ", file, ": ",
                   why, "; to delete it: zinf doctor ", drive, " --remove ", name));
  return false;
}

}  // namespace

void settle_move(const std::string& run_folder, RunArea& area) {
  if (!area.move) return;
  const bool moved = area.name == area.move->to.name;
  const AreaPlace& to = area.move->to;
  if (moved && !nvme::area_is_there(to.name, area_drives(run_folder, to.name, to.drives))) {
    log::warning(str("the state was moved to ", nvme::area_file(to.drives.front(), to.name),
                     ", which is not all there: where it was moved from is left alone"));
    return;
  }
  const AreaPlace& left = moved ? area.move->from : area.move->to;
  const checkpoint::ManifestFolder manifests(run_folder);
  for (const std::int64_t step : manifests.steps()) {
    try {
      if (manifests.read(step).area == left.name) manifests.remove(step);
    } catch (const Error&) {
      // Whoever looks for a commit says what is wrong with it.
    }
  }
  const std::vector<std::string> drives = area_drives(run_folder, left.name, left.drives);
  bool gone = true;
  for (const std::string& drive : drives) {
    remove_left_area(area, drive, left.name + "-scratch", true);
    gone &= remove_left_area(area, drive, left.name, !moved);
  }
  if (gone) checkpoint::KeptCheckpoints(run_folder).clean({left.name, drives}, false);
  area.move.reset();
  keep_area(run_folder, area);
}

void mark_area(RunArea area, const std::string& name, const std::vector<std::string>& drives) {
  area.name = name;
  refuse_other_owner(area, drives);
  for (const std::string& drive : drives) {
    const std::string file = nvme::area_file(drive, area.name);
    const auto mark = nvme::read_area_mark(file);
    if (!mark || mark->owner != area.owners.front())
      nvme::write_area_mark(file, {area.owners.front(), area.folder});
  }
}

bool is_kept_here(const std::string& run_folder, const std::string& area,
                  const std::vector<std::string>& drives) {
  const auto run = known_area(run_folder);
  if (!run || area.starts_with(run->name + "-kept-")) return true;
  const std::vector<std::string> places = area_drives(run_folder, area, drives);
  return std::all_of(places.begin(), places.end(), [&](const std::string& drive) {
    const auto mark = nvme::read_area_mark(nvme::area_file(drive, area));
    return mark && is_owner(*run, *mark);
  });
}

std::vector<std::string> area_drives(const std::string& run_folder, const std::string& area,
                                     const std::vector<std::string>& drives) {
  std::error_code error;
  // A run folder that holds its own area names itself, also once it is another one's copy.
  const bool here = drives.size() == 1 && fs::exists(nvme::area_file(run_folder, area), error) &&
                    (!fs::exists(nvme::area_file(drives[0], area), error) ||
                     fs::exists(note_file(drives[0]), error));
  return here ? std::vector<std::string>{run_folder} : drives;
}

std::vector<std::string> area_folders(const std::string& run_folder, const std::string& area,
                                      const std::vector<std::string>& written,
                                      const std::vector<std::string>& now) {
  if (now.size() == written.size() && nvme::area_is_there(area, now)) return now;
  return area_drives(run_folder, area, written);
}

}  // namespace zinf::train
