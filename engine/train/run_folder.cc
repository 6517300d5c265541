#include "engine/train/run_folder.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "engine/base/str.h"
#include "engine/checkpoint/kept.h"
#include "engine/checkpoint/manifest.h"
#include "engine/config/reference.h"
#include "engine/observe/summary.h"

namespace zinf::train {

namespace fs = std::filesystem;

RunFolder::RunFolder(const config::RunConfig& config, FolderUse use) : path_(config.output_dir) {
  std::error_code error;
  if (fs::exists(path_, error) && !fs::is_directory(path_, error)) {
    throw Error(ErrorKind::kUsage, str("output_dir: ", path_, " is a file, expected a folder"),
                "give another output_dir");
  }
  const checkpoint::ManifestFolder manifests(path_);
  if (use != FolderUse::kLook &&
      (fs::exists(metrics(), error) || fs::exists(summary(), error) || manifests.any())) {
    if (use == FolderUse::kGoOn && manifests.any()) return;
    if (use == FolderUse::kGoOn) {
      throw Error(ErrorKind::kUsage,
                  str("output_dir: ", path_, " already holds a run without a single commit"),
                  "give --fresh to start over and drop that run, or another --run-dir");
    }
    manifests.remove_all();
    std::vector<std::string> drives{path_};
    for (const config::NvmeDrive& drive : config.memory.nvme) drives.push_back(drive.path);
    checkpoint::KeptCheckpoints(path_).clean(area(), drives, true);
    for (const fs::directory_entry& entry : fs::directory_iterator(path_, error)) {
      if (entry.path().filename().string().starts_with("model-step-")) fs::remove_all(entry, error);
    }
    for (const char* name :
         {"metrics.jsonl", "summary.json", "status.json", "config.yaml", "zinf.log", "model",
          "model.partial", "trace.json", "report.html", "tensorboard"}) {
      fs::remove_all(file(name), error);
    }
  }
  fs::create_directories(fs::path(path_).parent_path(), error);
  if (::mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) {
    throw Error(ErrorKind::kUsage,
                str("output_dir: can't create ", path_, ": ", std::strerror(errno)),
                "give a folder that can be written");
  }
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

std::string RunFolder::area() const { return area_name(path_); }

std::string area_name(const std::string& run_folder) {
  std::error_code error;
  const std::string canonical = fs::weakly_canonical(run_folder, error).string();
  char text[24];
  std::snprintf(text, sizeof text, "%012llx",
                static_cast<unsigned long long>(xxh3_64(canonical.data(), canonical.size()) >> 16));
  return str("run-", text);
}

}  // namespace zinf::train
