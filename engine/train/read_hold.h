// How a command reads one commit of a run that goes on training: it takes a shared lock on the run
// folder's file `hold`; the run sees that at the end of a step, keeps its next commit unwritten,
// and writes that commit's step into the file. A reader that dies lets go of its lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

namespace zinf::train {

// The run's side. published() may come from any thread, the rest from the step loop's.
class ReadHoldServer {
 public:
  // Waits, and says so, for readers of an earlier process of this run.
  explicit ReadHoldServer(const std::string& run_folder);
  ~ReadHoldServer();
  ReadHoldServer(const ReadHoldServer&) = delete;
  ReadHoldServer& operator=(const ReadHoldServer&) = delete;

  // Whether anyone reads or waits to read. Nobody: takes back what was said.
  bool wanted();
  // This step's commit, perhaps not yet published, is the one to read.
  void promise(std::int64_t step) { promised_ = step; }
  void published(std::int64_t step);
  // This commit is held now.
  void say(std::int64_t step);

 private:
  int file_ = -1;
  std::string path_;
  std::atomic<std::int64_t> promised_{-1};
};

// The reader's side: holds from construction to destruction.
class ReadHold {
 public:
  // area_file: of the run, tells whether it is running. Waits until the run holds a commit, or has
  // ended. Error(kFailed): the run folder can't be written to.
  ReadHold(const std::string& run_folder, const std::string& area_file);
  ~ReadHold();
  ReadHold(const ReadHold&) = delete;
  ReadHold& operator=(const ReadHold&) = delete;

  // The commit that is held; none: the run is not running, and its newest commit is the one.
  std::optional<std::int64_t> step() const { return step_; }

 private:
  int file_ = -1;
  std::optional<std::int64_t> step_;
};

}  // namespace zinf::train
