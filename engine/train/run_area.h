// Which swap area is a run's. The run folder's file `area` names it and knows its mark
// (nvme/area_mark.h), so that a folder can be moved and a copy of it can't share the area:
// docs/formats/nvme-area.md.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nvme/area_mark.h"

namespace zinf::train {

// An area's name, and the folders that hold its files.
struct AreaPlace {
  std::string name;
  std::vector<std::string> drives;
  bool operator==(const AreaPlace&) const = default;
};
struct AreaMove {
  AreaPlace from, to;
  bool operator==(const AreaMove&) const = default;
};

struct RunArea {
  std::string name;                     // of its file on every drive, without the ending
  std::vector<nvme::AreaOwner> owners;  // the area is marked with one of them; the first is to be
  std::string folder;                   // the run folder's path when this was written
  // While the state goes to another area (relocation.h): both are the run's. The newest commit
  // tells which of them is `name`; the other one is worth nothing.
  std::optional<AreaMove> move = {};
  bool operator==(const RunArea&) const = default;
};

// "" when the folder names none: as its file `area` says, else as its newest commit does.
std::string area_name(const std::string& run_folder);
// Of every area that the run in the folder has a use for: its own, those of a move under way, those
// of kept commits.
std::vector<std::string> areas_of(const std::string& run_folder);

// The area of a run that goes on in this folder; of a moved one as it will be. A folder without a
// run gets a new name. Nothing is written. Error(kUsage): the folder is a copy of one that is still
// there. Error(kFailed): the area is another run's, or the file `area` is damaged.
RunArea find_area(const std::string& run_folder, const std::vector<std::string>& drives);
// The same for a run that begins: an area that another folder may be using is left to it.
RunArea area_to_begin(const std::string& run_folder, const std::vector<std::string>& drives);

// Writes the file `area`, durable, unless it says so already: before the area is made or marked.
void keep_area(const std::string& run_folder, const RunArea& area);
// After a move, or one that a killed process left: drops the area that is worth nothing, the
// commits that name it and copies that nobody knows. What may be another's stays, and is said.
// Writes the file `area`.
void settle_move(const std::string& run_folder, RunArea& area);
// Of an area that no other has.
std::string new_area_name();

// With the area open for this process alone (`name`: where it moves to, else the run's): checks its
// mark once more and puts the first owner's.
void mark_area(RunArea area, const std::string& name, const std::vector<std::string>& drives);

// Whether a kept commit's area is this run's: by its name, else, of one that was kept before the
// state went to other drives, by its files' marks.
bool is_kept_here(const std::string& run_folder, const std::string& area,
                  const std::vector<std::string>& drives);

// Where the area of a commit lies: the drives that its manifest names, or the run folder itself,
// which may have been moved or copied since.
std::vector<std::string> area_drives(const std::string& run_folder, const std::string& area,
                                     const std::vector<std::string>& drives);
// Where it lies for a config that names the folders `now`: there, if they are as many and all have
// it (its files may have been moved by hand), else where it was written.
std::vector<std::string> area_folders(const std::string& run_folder, const std::string& area,
                                      const std::vector<std::string>& written,
                                      const std::vector<std::string>& now);

}  // namespace zinf::train
