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
  Bytes bytes = 0;      // taken on the drive
  bool in_use = false;  // a process holds its lock
};

// Whether a process holds the area's lock. false for a file that is not there.
bool area_in_use(const std::string& path);
// Swap areas and forgotten scratch files of measurements, in order of their names. Empty for an
// unreadable directory.
std::vector<AreaInfo> list_areas(const std::string& directory);
// Throws Error when it is in use, no such file, or not one of ours by its name.
void remove_area(const std::string& path);

}  // namespace zinf::nvme
