#include "engine/data/file_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/base/under_way.h"

namespace zinf::data {

FileReader::FileReader(const std::string& path) : path_(path) {
  const UnderWay watched("data", "opening", path);
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) {
    throw Error(ErrorKind::kUsage,
                str("can't open ", path, " for reading: ", std::strerror(errno)));
  }
  struct stat info {};
  if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(std::exchange(fd_, -1));
    throw Error(ErrorKind::kUsage, str(path, " is not a regular file"));
  }
  size_ = static_cast<Bytes>(info.st_size);
}

FileReader::~FileReader() {
  if (fd_ >= 0) ::close(fd_);
}

FileReader::FileReader(FileReader&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

FileReader& FileReader::operator=(FileReader&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  return *this;
}

void FileReader::read(void* to, Bytes bytes, Bytes offset) const {
  const UnderWay watched("data", "reading", path_);
  auto* out = static_cast<char*>(to);
  Bytes done = 0;
  while (done < bytes) {
    const ssize_t got = ::pread(fd_, out + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      throw Error(ErrorKind::kFailed,
                  str("reading ", path_, " at offset ", offset, ", length ", bytes, ": ",
                      got < 0 ? std::string(std::strerror(errno))
                              : str("the file ends ", bytes - done, " bytes too early")),
                  got < 0 ? "" : "it was shortened while in use; prepare or copy it again");
    }
    done += static_cast<Bytes>(got);
  }
}

}  // namespace zinf::data
