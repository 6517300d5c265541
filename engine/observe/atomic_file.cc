#include "engine/observe/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "engine/base/disk.h"
#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/base/under_way.h"
#include "engine/observe/posix_write.h"

namespace zinf::observe {

namespace {

[[noreturn]] void fail(const std::string& what, const std::string& path, int error,
                       Bytes needed = 0) {
  throw Error(ErrorKind::kFailed,
              str(what, " ", path, ": ", std::strerror(error), missing_space(error, path, needed)),
              error == ENOSPC ? "free space in the run folder" : "");
}

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

}  // namespace

void sync_folder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail("opening folder", folder, errno);
  const int result = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  if (result != 0) fail("syncing folder", folder, error);
}

void write_file_atomically(const std::string& path, std::string_view text, Durability durability) {
  const UnderWay watched("files", "writing", path);
  const std::string temporary = path + ".tmp";
  const int fd = ::open(temporary.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  if (fd < 0) fail("creating", temporary, errno);
  int error = write_all(fd, text);
  if (error == 0 && durability != Durability::kBuffered && ::fsync(fd) != 0) error = errno;
  if (::close(fd) != 0 && error == 0) error = errno;
  if (error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(temporary.c_str());
    fail("writing", path, error, text.size());
  }
  if (durability == Durability::kSynced) sync_folder(folder_of(path));
}

bool overwrite_file(const std::string& path, std::string_view text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  struct stat info {};
  bool whole = ::fstat(fd, &info) == 0;
  if (whole) {
    // Blanks over what is left of a longer text, until it is cut: neither needs space.
    std::string padded(text);
    padded.resize(std::max(text.size(), static_cast<std::size_t>(info.st_size)), ' ');
    const ssize_t wrote = ::pwrite(fd, padded.data(), padded.size(), 0);
    whole = wrote == static_cast<ssize_t>(padded.size());
    const int ignored = whole ? ::ftruncate(fd, static_cast<off_t>(text.size())) : 0;
    static_cast<void>(ignored);
  }
  ::close(fd);
  return whole;
}

std::string read_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::string text;
  char block[1 << 16];
  ssize_t got = fd < 0 ? -1 : 0;
  while (fd >= 0 && ((got = ::read(fd, block, sizeof block)) > 0 || (got < 0 && errno == EINTR))) {
    if (got > 0) text.append(block, static_cast<std::size_t>(got));
  }
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (got < 0) throw Error(ErrorKind::kUsage, str("reading ", path, ": ", std::strerror(error)));
  return text;
}

}  // namespace zinf::observe
