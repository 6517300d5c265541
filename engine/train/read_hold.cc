#include "engine/train/read_hold.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/str.h"
#include "nvme/areas.h"

namespace zinf::train {

namespace {

int open_hold_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) throw Error(ErrorKind::kFailed, str("opening ", path, ": ", std::strerror(errno)));
  return file;
}

void lock(int file, int how, const std::string& path) {
  while (::flock(file, how) != 0) {
    if (errno != EINTR)
      throw Error(ErrorKind::kFailed, str("locking ", path, ": ", std::strerror(errno)));
  }
}

std::optional<std::int64_t> said_in(int file) {
  char text[32] = {};
  long long step = 0;
  int used = 0;
  if (::pread(file, text, sizeof text - 1, 0) <= 0) return std::nullopt;
  // The newline shows that the line is whole.
  if (std::sscanf(text, "step %lld%n", &step, &used) != 1 || text[used] != '\n')
    return std::nullopt;
  return step;
}

}  // namespace

ReadHoldServer::ReadHoldServer(const std::string& run_folder) : path_(run_folder + "/hold") {
  file_ = open_hold_file(path_);
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
    log::info("waits for a command that reads this run's state to end");
    lock(file_, LOCK_EX, path_);
  }
  const int ignored = ::ftruncate(file_, 0);
  static_cast<void>(ignored);
  ::flock(file_, LOCK_UN);
}

ReadHoldServer::~ReadHoldServer() { ::close(file_); }

bool ReadHoldServer::wanted() {
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0) return true;
  promised_ = -1;
  const int ignored = ::ftruncate(file_, 0);
  static_cast<void>(ignored);
  ::flock(file_, LOCK_UN);
  return false;
}

void ReadHoldServer::published(std::int64_t step) {
  if (promised_.compare_exchange_strong(step, -1)) say(step);
}

void ReadHoldServer::say(std::int64_t step) {
  const std::string text = str("step ", step, "\n");
  if (::pwrite(file_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
    log::warning(str("writing ", path_, ": ", std::strerror(errno)));
}

ReadHold::ReadHold(const std::string& run_folder, const std::string& area_file) {
  const std::string path = run_folder + "/hold";
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file_ < 0) {
    // An archive that can't be written to: whole as long as nobody trains there.
    if (!nvme::area_in_use(area_file)) return;
    throw Error(ErrorKind::kFailed, str("opening ", path, ": ", std::strerror(errno)),
                "a run that is training can be read by who may write its folder");
  }
  lock(file_, LOCK_SH, path);
  bool told = false;
  while (nvme::area_in_use(area_file)) {
    step_ = said_in(file_);
    if (step_) return;
    if (!told) log::info("the run is training: waits for its next commit, and holds that one");
    told = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

ReadHold::~ReadHold() {
  if (file_ >= 0) ::close(file_);
}

}  // namespace zinf::train
