#include "engine/train/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/str.h"
#include "engine/checkpoint/kept.h"
#include "engine/checkpoint/manifest.h"
#include "engine/config/reference.h"
#include "engine/observe/atomic_file.h"
#include "engine/observe/summary.h"
#include "nvme/areas.h"

namespace zinf::train {

namespace fs = std::filesystem;

FolderLock::FolderLock(const std::string& folder)
    : descriptor_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (descriptor_ < 0) return;
  // A killed process needs a moment to end, so "in use" is believed late.
  constexpr double kPatience = 2;
  for (const double give_up = now_seconds() + kPatience;;) {
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
    if (now_seconds() > give_up) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ::close(std::exchange(descriptor_, -1));
  throw Error(ErrorKind::kFailed, str("run folder ", folder, " is in use by another process"),
              "wait for that run to end, or give this one another --run-dir");
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool in_use(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return false;
  // Shared, and let go of at once: a run that starts meanwhile is patient.
  const bool used = ::flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(descriptor);
  return used;
}

RunFolder::RunFolder(const config::RunConfig& config, FolderUse use) : path_(config.output_dir) {
  std::error_code error;
  if (fs::exists(path_, error) && !fs::is_directory(path_, error)) {
    throw Error(ErrorKind::kUsage, str("output_dir: ", path_, " is a file, expected a folder"),
                "give another output_dir");
  }
  fs::create_directories(fs::path(path_).parent_path(), error);
  if (::mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) {
    throw Error(ErrorKind::kUsage,
                str("output_dir: can't create ", path_, ": ", std::strerror(errno)),
                "give a folder that can be written");
  }
  if (use != FolderUse::kLook) lock_ = FolderLock(path_);
  area_ = use == FolderUse::kFresh ? area_to_begin(path_, state_drives(config))
                                   : find_area(path_, state_drives(config));
  const bool used = fs::exists(metrics(), error) || fs::exists(summary(), error);
  if (use == FolderUse::kGoOn && used && !checkpoint::ManifestFolder(path_).any()) {
    throw Error(ErrorKind::kUsage,
                str("output_dir: ", path_, " already holds a run without a single commit"),
                "give --fresh to start over and drop that run, or another --run-dir");
  }
}

void RunFolder::drop_run(const config::RunConfig& config) const {
  const checkpoint::ManifestFolder manifests(path_);
  const checkpoint::KeptCheckpoints kept(path_, area_.owners);
  if (const std::vector<std::int64_t> steps = manifests.steps(); !steps.empty()) {
    log::warning(str("--fresh drops the run in ", path_, ": step ", steps.back(), " and ",
                     kept.steps().size(), " kept checkpoints"));
  }
  std::vector<std::string> drives{path_};
  for (const config::NvmeDrive& drive : config.memory.nvme) drives.push_back(drive.path);
  if (const auto newest = manifests.find().newest; newest && newest->area != area_.name) {
    for (const std::string& drive : newest->drives) {
      const std::string file = nvme::area_file(drive, newest->area);
      if (!fs::exists(file)) continue;
      log::warning(str("the dropped run's area stays: ", file, "; to delete it: zinf doctor ",
                       drive, " --remove ", newest->area));
    }
  }
  manifests.remove_all();
  kept.clean({area_.name, drives}, true);
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_, error)) {
    if (entry.path().filename().string().starts_with("model-step-")) fs::remove_all(entry, error);
  }
  for (const char* name : {"metrics.jsonl", "summary.json", "status.json", "config.yaml", "model",
                           "model.partial", "trace.json", "report.html", "tensorboard"}) {
    fs::remove_all(file(name), error);
  }
}

void RunFolder::drop_summary() const {
  std::error_code error;
  if (fs::remove(summary(), error)) observe::sync_folder(path_);
  if (error)
    throw Error(ErrorKind::kFailed, str("can't remove ", summary(), ": ", error.message()));
}

void RunFolder::write_config(const config::RunConfig& config) const {
  std::ofstream out(file("config.yaml"), std::ios::trunc);
  out << resolved_yaml(config);
  if (!out.flush()) {
    throw Error(ErrorKind::kFailed,
                str("can't write ", file("config.yaml"), ": ", std::strerror(errno)),
                "free some disk space");
  }
}

bool RunFolder::summary_ends_at(std::int64_t step) const {
  std::ifstream in(summary());
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (text.empty()) return false;
  try {
    const observe::Summary found = observe::parse_summary(text);
    return found.steps == static_cast<std::uint64_t>(step) && found.stopped_by.empty();
  } catch (const Error&) {
    return false;
  }
}

std::vector<std::string> state_drives(const config::RunConfig& config) {
  std::vector<std::string> drives;
  for (const config::NvmeDrive& drive : config.memory.nvme) drives.push_back(drive.path);
  if (drives.empty()) drives.push_back(config.output_dir);
  return drives;
}

}  // namespace zinf::train
