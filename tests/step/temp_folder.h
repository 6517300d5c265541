// A folder that goes away, on a file system with direct I/O (the temporary folder of the system's
// disk) or in memory.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>
#include <string>

namespace zinf::testing {

class TempFolder {
 public:
  explicit TempFolder(const std::string& parent = "/var/tmp") {
    std::string name = parent + "/zinf-step-XXXXXX";
    if (mkdtemp(name.data()) == nullptr)
      throw std::runtime_error("could not make a folder in " + parent);
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Where many small runs are quickest: memory where there is some, else the disk.
inline std::string quick_parent() {
  std::error_code error;
  const auto space = std::filesystem::space("/dev/shm", error);
  return !error && space.available > (std::uintmax_t{48} << 20) && access("/dev/shm", W_OK) == 0
             ? "/dev/shm"
             : "/var/tmp";
}

}  // namespace zinf::testing
