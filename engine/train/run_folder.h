// The folder of one run: resolved config, metrics, summary, status, log, token cache, exported
// model.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/config/run_config.h"
#include "engine/train/run_area.h"

namespace zinf::train {

enum class FolderUse {
  kGoOn,   // a new run, or the next part of the one that is there
  kFresh,  // a new run; drop_run() drops the one that is there
  kLook,   // changes nothing but the token cache
};

// Held by the process that trains in a folder; the kernel lets go of it when the process ends.
class FolderLock {
 public:
  FolderLock() = default;
  // Error(kFailed): another process holds it. A file system without such locks gives none.
  explicit FolderLock(const std::string& folder);
  FolderLock(FolderLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FolderLock& operator=(FolderLock&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~FolderLock();

 private:
  int descriptor_ = -1;
};

// Whether a process trains in this folder now, as far as its file system has locks.
bool in_use(const std::string& folder);

class RunFolder {
 public:
  // Creates the folder with mode 0700 and, unless it is only looked at, locks it. Error(kUsage): it
  // can't be made, or (kGoOn) it holds a run without any commit, which can't be gone on with.
  // Error(kFailed): another process trains there. Errors of find_area() (run_area.h).
  RunFolder(const config::RunConfig& config, FolderUse use);

  // Removes manifests, kept checkpoints, results and exported models; token cache and log stay.
  // Once nothing else can refuse the new run.
  void drop_run(const config::RunConfig& config) const;

  // Before a run goes on to another end than that of the summary that is there.
  void drop_summary() const;

  // Keeps the resolved config beside the results.
  void write_config(const config::RunConfig& config) const;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string metrics() const { return file("metrics.jsonl"); }
  std::string summary() const { return file("summary.json"); }
  std::string status() const { return file("status.json"); }
  std::string log() const { return file("zinf.log"); }
  std::string cache() const { return file("cache"); }
  std::string model() const { return file("model"); }
  // The summary that is there is of a run that ended after this step; false when there is none.
  bool summary_ends_at(std::int64_t step) const;
  // The run's swap area: one run folder, one area.
  const RunArea& area() const { return area_; }

 private:
  std::string path_;
  RunArea area_;
  FolderLock lock_;
};

// Where the state of a run lies: memory.nvme, else the run folder.
std::vector<std::string> state_drives(const config::RunConfig& config);

}  // namespace zinf::train
