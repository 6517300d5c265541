#include "nvme/areas.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>

#include "engine/base/error.h"
#include "nvme/errno_text.h"

namespace zinf::nvme {

namespace {

bool is_scratch(const std::string& name) {
  return name.starts_with("zinf-bench-") && name.ends_with(".tmp");
}

bool is_area(const std::string& name) {
  return name.size() > std::string_view(kAreaEnding).size() && name.ends_with(kAreaEnding);
}

// The file with its lock tried; closed at the end, which gives the lock back.
class Locked {
 public:
  Locked(const std::string& path, int lock) {
    file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    error_ = file_ < 0 ? errno : 0;
    held_ = file_ >= 0 && ::flock(file_, lock | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  }
  ~Locked() {
    if (file_ >= 0) ::close(file_);
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  bool held_elsewhere() const { return held_; }
  bool refused() const { return error_ == EACCES || error_ == EPERM; }

 private:
  int file_ = -1, error_ = 0;
  bool held_ = false;
};

}  // namespace

std::string area_file(const std::string& directory, const std::string& area) {
  return fmt::format("{}/{}{}", directory, area, kAreaEnding);
}

bool area_is_there(const std::string& area, const std::vector<std::string>& directories) {
  return std::all_of(directories.begin(), directories.end(), [&](const std::string& directory) {
    std::error_code error;
    return std::filesystem::exists(area_file(directory, area), error);
  });
}

bool area_in_use(const std::string& path) { return Locked(path, LOCK_SH).held_elsewhere(); }

std::vector<AreaInfo> list_areas(const std::string& directory) {
  std::vector<AreaInfo> areas;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    struct stat info {};
    const std::string path = entry.path().string();
    const std::string name = entry.path().filename().string();
    if ((!is_area(name) && !is_scratch(name)) || ::lstat(path.c_str(), &info) != 0 ||
        !S_ISREG(info.st_mode))
      continue;
    const Locked lock(path, LOCK_SH);
    areas.push_back({path, static_cast<Bytes>(info.st_blocks) * 512, lock.held_elsewhere(),
                     lock.refused(), is_scratch(name)});
  }
  std::sort(areas.begin(), areas.end(),
            [](const AreaInfo& a, const AreaInfo& b) { return a.path < b.path; });
  return areas;
}

void remove_area(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  if (!is_area(name) && !is_scratch(name)) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{} is no swap area by its name (*{})", path, kAreaEnding));
  }
  const Locked lock(path, LOCK_EX);  // nobody takes it up before it is gone
  if (lock.held_elsewhere()) {
    throw Error(ErrorKind::kFailed, fmt::format("swap area {} is in use by another process", path),
                "wait for that run to end");
  }
  if (lock.refused()) {
    throw Error(ErrorKind::kFailed,
                fmt::format("swap area {} can't be opened, so a run may be using it", path),
                "remove it as the user whose run it is");
  }
  if (::unlink(path.c_str()) != 0)
    throw Error(ErrorKind::kFailed, fmt::format("removing {}: {}", path, errno_text(errno)));
}

}  // namespace zinf::nvme
