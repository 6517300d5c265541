#include "nvme/area_copy.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "engine/base/error.h"
#include "nvme/directory.h"
#include "nvme/errno_text.h"
#include "nvme/huge_buffer.h"
#include "nvme/swap_file.h"

namespace zinf::nvme {

namespace {

constexpr Bytes kPiece = 4 * kMiB;

std::string folder_of(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

[[noreturn]] void fail(const std::string& what, const std::string& path, int error, Bytes needed) {
  const bool full = error == ENOSPC || error == EDQUOT;
  if (full) check_space(folder_of(path), needed, 0);  // throws, naming needed and free
  throw Error(ErrorKind::kFailed, fmt::format("{} {}: {}", what, path, errno_text(error)),
              full ? fmt::format("free {} there", format_bytes(needed)) : "");
}

// Closes; removes the file unless it was kept.
class Descriptor {
 public:
  Descriptor(std::string path, int flags, bool temporary)
      : path_(std::move(path)), temporary_(temporary) {
    number_ = ::open(path_.c_str(), flags | O_DIRECT | O_CLOEXEC | O_NOFOLLOW, 0600);
    // A file system without direct I/O.
    if (number_ < 0 && errno == EINVAL)
      number_ = ::open(path_.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (number_ < 0) fail("opening", path_, errno, 0);
  }
  ~Descriptor() {
    ::close(number_);
    if (temporary_) ::unlink(path_.c_str());
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }
  void keep() { temporary_ = false; }

 private:
  std::string path_;
  bool temporary_;
  int number_ = -1;
};

bool clone_range(int from, int to, const FileRange& range) {
  file_clone_range clone{};
  clone.src_fd = from;
  clone.src_offset = clone.dest_offset = range.offset;
  clone.src_length = range.bytes;
  return ::ioctl(to, FICLONERANGE, &clone) == 0;
}

void reserve(int file, const std::string& path, const std::vector<FileRange>& ranges,
             Bytes needed) {
  for (const FileRange& range : ranges) {
    int result = 0;
    do {
      result = ::fallocate(file, 0, static_cast<off_t>(range.offset),
                           static_cast<off_t>(range.bytes)) == 0
                   ? 0
                   : errno;
    } while (result == EINTR);
    if (result == EOPNOTSUPP) return;  // a full drive then shows while writing
    if (result != 0) fail("reserving space for", path, result, needed);
  }
}

// Moves exactly `bytes` at `offset`.
template <typename Move>
void move_all(const Move& move, std::byte* memory, Bytes bytes, std::uint64_t offset,
              const std::string& what, const std::string& path) {
  for (Bytes done = 0; done < bytes;) {
    const ssize_t moved = move(memory + done, bytes - done, static_cast<off_t>(offset + done));
    if (moved < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (moved < 0) fail(what, path, errno, bytes - done);
    if (moved == 0)
      throw Error(ErrorKind::kFailed, fmt::format("{} {}: the file ends early", what, path));
    done += static_cast<Bytes>(moved);
  }
}

}  // namespace

AreaCopyResult copy_area(const AreaCopyRequest& request,
                         const std::function<bool(Bytes done)>& go_on) {
  AreaCopyResult result;
  Bytes all = 0;
  for (const FileRange& range : request.ranges) all += range.bytes;
  const Descriptor from(request.from, O_RDONLY, false);
  Descriptor to(request.to, O_RDWR | O_CREAT | O_TRUNC, true);
  struct stat info {};
  if (::fstat(from.number(), &info) != 0) fail("looking at", request.from, errno, 0);
  if (::ftruncate(to.number(), info.st_size) != 0) fail("making", request.to, errno, all);

  result.cloned = request.clone && !request.ranges.empty() &&
                  clone_range(from.number(), to.number(), request.ranges[0]);
  if (!result.cloned) reserve(to.number(), request.to, request.ranges, all);
  const HugeBuffer buffer(kPiece);
  for (const FileRange& range : request.ranges) {
    if (result.cloned) {
      if (!clone_range(from.number(), to.number(), range))
        fail("sharing blocks with", request.to, errno, all - result.bytes);
      result.bytes += range.bytes;
      if (!go_on(result.bytes)) return result;
      continue;
    }
    for (Bytes done = 0; done < range.bytes; done += kPiece) {
      const Bytes part = std::min(kPiece, range.bytes - done);
      const std::uint64_t offset = range.offset + done;
      move_all([&](std::byte* at, Bytes bytes,
                   off_t where) { return ::pread(from.number(), at, bytes, where); },
               buffer.data(), part, offset, "reading", request.from);
      move_all([&](std::byte* at, Bytes bytes,
                   off_t where) { return ::pwrite(to.number(), at, bytes, where); },
               buffer.data(), part, offset, "writing", request.to);
      result.bytes += part;
      if (!go_on(result.bytes)) return result;
    }
  }
  if (::fsync(to.number()) != 0) fail("syncing", request.to, errno, 0);
  to.keep();
  return result;
}

void rename_durably(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) fail("renaming", from, errno, 0);
  const int folder = ::open(folder_of(to).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) fail("opening", folder_of(to), errno, 0);
  const int error = ::fsync(folder) == 0 ? 0 : errno;
  ::close(folder);
  if (error != 0) fail("syncing", folder_of(to), error, 0);
}

}  // namespace zinf::nvme
