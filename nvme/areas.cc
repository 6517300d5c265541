#include "nvme/areas.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "engine/base/error.h"
#include "nvme/errno_text.h"

namespace zinf::nvme {

namespace {

bool is_ours(const std::string& name) {
  const auto ends = [&](const std::string& tail) {
    return name.size() > tail.size() &&
           name.compare(name.size() - tail.size(), tail.size(), tail) == 0;
  };
  return ends(kAreaEnding) || (name.rfind("zinf-bench-", 0) == 0 && ends(".tmp"));
}

}  // namespace

std::string area_file(const std::string& directory, const std::string& area) {
  return fmt::format("{}/{}{}", directory, area, kAreaEnding);
}

bool area_in_use(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return false;
  const bool held = ::flock(file, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::flock(file, LOCK_UN);
  ::close(file);
  return held;
}

std::vector<AreaInfo> list_areas(const std::string& directory) {
  std::vector<AreaInfo> areas;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    struct stat info {};
    const std::string path = entry.path().string();
    if (!is_ours(entry.path().filename().string()) || ::lstat(path.c_str(), &info) != 0 ||
        !S_ISREG(info.st_mode))
      continue;
    areas.push_back({path, static_cast<Bytes>(info.st_blocks) * 512, area_in_use(path)});
  }
  std::sort(areas.begin(), areas.end(),
            [](const AreaInfo& a, const AreaInfo& b) { return a.path < b.path; });
  return areas;
}

void remove_area(const std::string& path) {
  if (!is_ours(std::filesystem::path(path).filename().string())) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{} is no swap area by its name (*{})", path, kAreaEnding));
  }
  if (area_in_use(path)) {
    throw Error(ErrorKind::kFailed, fmt::format("swap area {} is in use by another process", path),
                "wait for that run to end");
  }
  if (::unlink(path.c_str()) != 0)
    throw Error(ErrorKind::kFailed, fmt::format("removing {}: {}", path, errno_text(errno)));
}

}  // namespace zinf::nvme
