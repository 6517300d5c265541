#include "nvme/io_failure.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>

#include "nvme/errno_text.h"

namespace zinf::nvme {

namespace {

std::string attempt(const FailedBlock& block) {
  if (block.op == IoOp::kSync) return fmt::format("syncing {}", block.path);
  return fmt::format("{} {} bytes at offset {} of {}",
                     block.op == IoOp::kRead ? "reading" : "writing", block.bytes, block.offset,
                     block.path);
}

std::shared_ptr<const IoFailure> make(int error_number, std::string message, std::string hint) {
  return std::make_shared<const IoFailure>(
      IoFailure{error_number, std::move(message), std::move(hint)});
}

std::string space_hint(const FailedBlock& block) {
  struct statvfs fs {};
  if (block.op == IoOp::kSync || ::fstatvfs(block.descriptor, &fs) != 0)
    return "free space on that file system";
  // Where space can't be reserved the rest of the file will be missing next.
  struct stat file {};
  const bool known = ::fstat(block.descriptor, &file) == 0;
  const Bytes size = known ? static_cast<Bytes>(file.st_size) : 0;
  const Bytes there = known ? static_cast<Bytes>(file.st_blocks) * 512 : 0;
  const Bytes needed = std::max(block.bytes, size - std::min(size, there));
  const Bytes free = static_cast<Bytes>(fs.f_bavail) * fs.f_frsize;
  return fmt::format(
      "needed {} bytes, free {} bytes on its file system; free {} there and start the run again",
      needed, free, format_bytes(needed - std::min(needed, free)));
}

std::string hint_for(const FailedBlock& block, int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      return space_hint(block);
    case EFBIG: {
      rlimit limit{};
      ::getrlimit(RLIMIT_FSIZE, &limit);
      if (limit.rlim_cur == RLIM_INFINITY) return "the file system's largest file size is reached";
      return fmt::format(
          "the file-size limit is {} bytes and {} are needed; raise it with ulimit -f unlimited",
          limit.rlim_cur, block.offset + block.bytes);
    }
    case EIO:
      return "the drive reported an error; see dmesg and the drive's SMART log";
    case EROFS:
      return "the file system became read-only, often after a drive error; see dmesg";
    default:
      return "";
  }
}

}  // namespace

std::shared_ptr<const IoFailure> failed_with(const FailedBlock& block, int error_number) {
  return make(error_number, fmt::format("{}: {}", attempt(block), errno_text(error_number)),
              hint_for(block, error_number));
}

std::shared_ptr<const IoFailure> failed_short(const FailedBlock& block, Bytes moved) {
  struct stat info {};
  const bool known = ::fstat(block.descriptor, &info) == 0;
  const auto size = static_cast<Bytes>(info.st_size);
  if (block.op == IoOp::kRead && known && size < block.offset + block.bytes) {
    return make(0, fmt::format("{}: the file ends at {}", attempt(block), size),
                "the file was cut after it was made; do not change files of a swap area");
  }
  return make(0,
              fmt::format("{}: only {} bytes were moved and repeating it makes no progress",
                          attempt(block), moved),
              "the drive or its driver is failing; see dmesg");
}

std::shared_ptr<const IoFailure> failed_stalled(const FailedBlock& block, double seconds) {
  return make(0, fmt::format("{}: no answer from the drive for {:.3g} s", attempt(block), seconds),
              "the drive hangs; see dmesg");
}

}  // namespace zinf::nvme
