#include "nvme/swap_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "nvme/errno_text.h"

namespace zinf::nvme {

namespace {

constexpr double kLockPatience = 2;  // seconds

std::string directory_of(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

// A write beyond RLIMIT_FSIZE kills the process by default; ignored, it is EFBIG, which we report.
// A handler that the program has set stays.
void make_size_signal_an_error() {
  struct sigaction action {};
  if (::sigaction(SIGXFSZ, nullptr, &action) == 0 && action.sa_handler == SIG_DFL)
    ::signal(SIGXFSZ, SIG_IGN);
}

int open_flags(const DirectoryFacts& facts, bool read_only = false) {
  return (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NOFOLLOW | (facts.direct ? O_DIRECT : 0);
}

}  // namespace

void check_space(const std::string& directory, Bytes needed, Bytes present) {
  const Bytes free = free_bytes(directory) + present;
  if (needed <= free) return;
  throw Error(
      ErrorKind::kDoesNotFit,
      fmt::format("not enough space in {}: needed {} ({} bytes), free {} ({} bytes)", directory,
                  format_bytes(needed), needed, format_bytes(free), free),
      fmt::format("free {} there, or add a drive to memory.nvme", format_bytes(needed - free)));
}

void check_file_size_limit(const std::string& path, Bytes bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      bytes <= limit.rlim_cur)
    return;
  throw Error(ErrorKind::kDoesNotFit,
              fmt::format("{} needs {} bytes, but the file-size limit is {} bytes", path, bytes,
                          limit.rlim_cur),
              "raise it with ulimit -f unlimited");
}

SwapFile::SwapFile(int descriptor, std::string path, const DirectoryFacts& facts)
    : descriptor_(descriptor),
      path_(std::move(path)),
      direct_(facts.direct),
      alignment_(facts.alignment) {
  make_size_signal_an_error();
  if (!facts.direct) {
    log::warning_once(
        fmt::format("{} does no direct I/O ({} on {}): using buffered I/O, which is slower and "
                    "fills the page cache",
                    directory_of(path_), facts.why_buffered, facts.file_system));
  }
}

SwapFile::SwapFile(SwapFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      path_(std::move(other.path_)),
      bytes_(other.bytes_),
      direct_(other.direct_),
      alignment_(other.alignment_) {}

SwapFile::~SwapFile() {
  if (descriptor_ < 0) return;
  ::flock(descriptor_,
          LOCK_UN);  // closing alone does not end the lock while the kernel still holds the file
  ::close(descriptor_);
}

SwapFile SwapFile::create(const std::string& path, Bytes bytes, const DirectoryFacts& facts,
                          bool replace) {
  check_file_size_limit(path, bytes);
  struct stat info {};
  Bytes present = 0;
  if (::lstat(path.c_str(), &info) == 0) {
    if (!replace) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("swap area {} exists already, left by another run", path),
                  "resume that run, or replace its area with --fresh");
    }
    present = static_cast<Bytes>(info.st_blocks) * 512;
  }
  check_space(directory_of(path), bytes, present);
  const int descriptor =
      ::open(path.c_str(), open_flags(facts) | O_CREAT | (replace ? 0 : O_EXCL), 0600);
  if (descriptor < 0) {
    throw Error(ErrorKind::kFailed,
                fmt::format("creating swap area {}: {}", path, errno_text(errno)));
  }
  SwapFile file(descriptor, path, facts);
  file.lock();
  file.preallocate(bytes);
  return file;
}

SwapFile SwapFile::reopen(const std::string& path, const DirectoryFacts& facts, bool read_only) {
  const int descriptor = ::open(path.c_str(), open_flags(facts, read_only));
  if (descriptor < 0) {
    const int error = errno;
    if (error == ENOENT) {
      throw Error(ErrorKind::kFailed, fmt::format("swap area {} is missing", path),
                  "bring the file back or start the run anew with --fresh");
    }
    throw Error(ErrorKind::kFailed,
                fmt::format("opening swap area {}: {}", path, errno_text(error)));
  }
  SwapFile file(descriptor, path, facts);
  struct stat info {};
  if (::fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    throw Error(ErrorKind::kFailed, fmt::format("swap area {} is no regular file", path));
  }
  if (!read_only) file.lock();
  file.bytes_ = static_cast<Bytes>(info.st_size);
  return file;
}

void SwapFile::lock() const {
  int error = 0;
  // A killed process's lock lives on until the kernel has taken its ring apart, so "in use" is
  // believed late.
  for (const double give_up = now_seconds() + kLockPatience;;) {
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
    error = errno;
    if (error != EWOULDBLOCK || now_seconds() > give_up) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (error == EWOULDBLOCK) {
    throw Error(
        ErrorKind::kFailed, fmt::format("swap area {} is in use by another process", path_),
        "wait for that run to end, or give this one another directory in memory.nvme[].path");
  }
  throw Error(ErrorKind::kFailed,
              fmt::format("locking swap area {}: {}", path_, errno_text(error)));
}

void SwapFile::preallocate(Bytes bytes) {
  // Only now that the lock is ours may old bytes go.
  int result = ::ftruncate(descriptor_, 0) == 0 ? 0 : errno;
  if (result == 0) {
    do {
      result = ::fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
    } while (result == EINTR);
  }
  if (result == EOPNOTSUPP) {
    log::warning_once(
        fmt::format("{} can't reserve space in advance: a full disk would show only while writing",
                    directory_of(path_)));
    result = ::ftruncate(descriptor_, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  }
  if (result == 0) {
    bytes_ = bytes;
    return;
  }
  ::unlink(path_.c_str());
  if (result == ENOSPC || result == EDQUOT) check_space(directory_of(path_), bytes, 0);
  throw Error(result == ENOSPC || result == EDQUOT || result == EFBIG ? ErrorKind::kDoesNotFit
                                                                      : ErrorKind::kFailed,
              fmt::format("reserving {} bytes for swap area {}: {}; {} bytes free", bytes, path_,
                          errno_text(result), free_bytes(directory_of(path_))));
}

void SwapFile::sync() const {
  if (::fdatasync(descriptor_) != 0) {
    throw Error(ErrorKind::kFailed, fmt::format("syncing {}: {}", path_, errno_text(errno)));
  }
}

void SwapFile::remove() const { ::unlink(path_.c_str()); }

}  // namespace zinf::nvme
