// Swap areas by their files: how one is named, and what earlier runs left in a directory. Listing
// only reads; removing is asked for by the user.
#pragma once

#include <string>
#include <vector>

#include "engine/base/bytes.h"

namespace zinf::nvme {

constexpr const char* kAreaEnding = ".zinf-area";
std::string area_file(const std::string& directory, const std::string& area);

struct AreaInfo {
  std::string path;
  Bytes bytes = 0;       // taken on the drive
  bool in_use = false;   // a process holds its lock
  bool unknown = false;  // another user's, which can't be opened: a process may hold its lock
  bool scratch = false;  // a measurement's forgotten file, which holds no state
};

// Whether each of the folders has a file of that area.
bool area_is_there(const std::string& area, const std::vector<std::string>& directories);

// Whether a process holds the area's lock. false for a file that is not there, or can't be opened.
bool area_in_use(const std::string& path);
// Swap areas and forgotten scratch files of measurements, in order of their names. Empty for an
// unreadable directory.
std::vector<AreaInfo> list_areas(const std::string& directory);
// Throws Error when it is in use or another user's, no such file, or not one of ours by its name.
void remove_area(const std::string& path);

}  // namespace zinf::nvme
