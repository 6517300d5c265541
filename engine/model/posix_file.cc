#include "engine/model/posix_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/base/disk.h"
#include "engine/base/error.h"
#include "engine/base/str.h"

namespace zinf::model {
namespace {

// The kernel moves at most 2 GiB - 4 KiB per call.
constexpr Bytes kMostPerCall = Bytes{1} << 30;

[[noreturn]] void fail(const std::string& attempted, const std::string& path, int error,
                       Bytes needed = 0) {
  throw Error(ErrorKind::kFailed, str(attempted, " ", path, ": ", std::strerror(error),
                                      missing_space(error, path, needed)));
}

}  // namespace

PosixFile PosixFile::open_read(const std::string& path) {
  // O_NONBLOCK: a pipe in the file's place is found out instead of waited for.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail("cannot open", path, errno);
  PosixFile file(fd, path);
  struct stat info {};
  if (::fstat(fd, &info) != 0) fail("cannot inspect", path, errno);
  if (!S_ISREG(info.st_mode)) throw Error(ErrorKind::kUsage, str(path, " is not a regular file"));
  return file;
}

PosixFile PosixFile::create(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) fail("cannot create", path, errno);
  return PosixFile(fd, path);
}

PosixFile& PosixFile::operator=(PosixFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

PosixFile::~PosixFile() {
  if (fd_ >= 0) ::close(fd_);
}

Bytes PosixFile::size() const {
  struct stat info {};
  if (::fstat(fd_, &info) != 0) fail("cannot inspect", path_, errno);
  return static_cast<Bytes>(info.st_size);
}

void PosixFile::read(Bytes offset, Bytes count, void* into) const {
  char* target = static_cast<char*>(into);
  Bytes done = 0;
  while (done < count) {
    const Bytes wanted = std::min(count - done, kMostPerCall);
    const ssize_t got = ::pread(fd_, target + done, wanted, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const int error = errno;
      throw Error(ErrorKind::kFailed, str("reading ", count, " bytes at ", offset, " of ", path_,
                                          ": ", std::strerror(error)));
    }
    if (got == 0) {
      throw Error(ErrorKind::kFailed,
                  str("reading ", count, " bytes at ", offset, " of ", path_,
                      ": the file ends after ", done, " of them"),
                  "the file was cut short; download or write it again");
    }
    done += static_cast<Bytes>(got);
  }
}

void PosixFile::append(const void* bytes, Bytes count) {
  const char* source = static_cast<const char*>(bytes);
  Bytes done = 0;
  while (done < count) {
    const ssize_t put = ::write(fd_, source + done, std::min(count - done, kMostPerCall));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      fail(str("writing ", count - done, " bytes to"), path_, put < 0 ? errno : EIO, count - done);
    }
    done += static_cast<Bytes>(put);
  }
}

void PosixFile::sync() {
  if (::fsync(fd_) != 0) fail("cannot sync", path_, errno);
}

std::string read_text_file(const std::string& path, Bytes limit) {
  const PosixFile file = PosixFile::open_read(path);
  const Bytes size = file.size();
  if (size > limit) {
    throw Error(ErrorKind::kUsage, str(path, " has ", size, " bytes; at most ", limit,
                                       " are expected of such a file"));
  }
  std::string text(size, '\0');
  file.read(0, size, text.data());
  return text;
}

void write_text_file(const std::string& path, const std::string& text) {
  PosixFile file = PosixFile::create(path);
  file.append(text.data(), text.size());
  file.sync();
}

void sync_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail("cannot open folder", path, errno);
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  // Some file systems have no sync of folders; their renames are as durable as they get.
  if (error != 0 && error != EINVAL && error != ENOTSUP) fail("cannot sync folder", path, error);
}

}  // namespace zinf::model
