#include "nvme/directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>

#include "engine/base/error.h"
#include "nvme/errno_text.h"

namespace zinf::nvme {

namespace {

using FreeMemory = std::unique_ptr<std::byte, decltype(&std::free)>;

FreeMemory aligned_memory(Bytes bytes) {
  return {static_cast<std::byte*>(std::aligned_alloc(bytes, bytes)), &std::free};
}

struct Descriptor {
  int value = -1;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

// Creates a file and unlinks it at once, so that nothing stays behind if we die. -errno on failure.
int open_nameless(const std::string& path, int flags) {
  const std::string name = fmt::format("{}/.zinf-probe-{}", path, ::getpid());
  ::unlink(name.c_str());  // of a dead process with our number
  const int file = ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | flags, 0600);
  const int error = errno;
  // Some kernels create the file before they refuse O_DIRECT.
  ::unlink(name.c_str());
  return file >= 0 ? file : -error;
}

[[noreturn]] void refuse(const std::string& path, int error) {
  if (error == EROFS) {
    throw Error(ErrorKind::kFailed, fmt::format("swap directory {} is mounted read-only", path),
                "name a writable directory in memory.nvme[].path, or remount it");
  }
  if (error == EACCES || error == EPERM) {
    throw Error(
        ErrorKind::kFailed,
        fmt::format("no permission to write to swap directory {}: {}", path, errno_text(error)),
        "change its owner or mode, or name another one in memory.nvme[].path");
  }
  if (error == ENOSPC || error == EDQUOT) {
    throw Error(ErrorKind::kDoesNotFit,
                fmt::format("swap directory {} is full: {}, {} bytes free", path, errno_text(error),
                            free_bytes(path)),
                "free space there, or name another directory in memory.nvme[].path");
  }
  if (error == EFBIG) {
    throw Error(ErrorKind::kDoesNotFit,
                fmt::format("the file-size limit forbids writing a single block to {}", path),
                "raise it with ulimit -f unlimited");
  }
  throw Error(ErrorKind::kFailed,
              fmt::format("trying a file in swap directory {}: {}", path, errno_text(error)));
}

// 0, or the errno of the step that failed; EILSEQ when other bytes come back.
int try_block(int file, Bytes bytes) {
  const FreeMemory written = aligned_memory(bytes), back = aligned_memory(bytes);
  for (Bytes i = 0; i < bytes; ++i) written.get()[i] = static_cast<std::byte>(i * 7 + i / 251 + 1);
  std::memset(back.get(), 0, bytes);
  errno = EIO;  // for a short transfer, which sets none
  if (::pwrite(file, written.get(), bytes, 0) != static_cast<ssize_t>(bytes)) return errno;
  errno = EIO;
  if (::pread(file, back.get(), bytes, 0) != static_cast<ssize_t>(bytes)) return errno;
  return std::memcmp(written.get(), back.get(), bytes) == 0 ? 0 : EILSEQ;
}

std::string file_system_name(const std::string& path) {
  struct statfs info {};
  if (::statfs(path.c_str(), &info) != 0) return "unknown";
  static const std::map<std::uint64_t, const char*> kNames = {
      {0xEF53, "ext4"},      {0x58465342, "xfs"},      {0x9123683E, "btrfs"},
      {0x01021994, "tmpfs"}, {0x794C7630, "overlay"},  {0x6969, "nfs"},
      {0x2FC12FC1, "zfs"},   {0xF2F52010, "f2fs"},     {0x65735546, "fuse"},
      {0xFF534D42, "cifs"},  {0xFE534D42, "smb"},      {0x0BD00BD0, "lustre"},
      {0x858458F6, "ramfs"}, {0xCA451A4E, "bcachefs"}, {0x47504653, "gpfs"},
      {0x01021997, "9p"},    {0x00C36400, "ceph"}};
  const auto magic = static_cast<std::uint64_t>(static_cast<std::uint32_t>(info.f_type));
  const auto found = kNames.find(magic);
  return found != kNames.end() ? found->second : fmt::format("{:#x}", magic);
}

}  // namespace

void check_directory(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) {
      throw Error(ErrorKind::kUsage, fmt::format("swap directory {} does not exist", path),
                  fmt::format("mkdir -p {}, or correct memory.nvme[].path", path));
    }
    throw Error(ErrorKind::kUsage, fmt::format("swap directory {}: {}", path, errno_text(errno)));
  }
  if (!S_ISDIR(info.st_mode)) {
    throw Error(ErrorKind::kUsage,
                fmt::format("swap directory {} is a file, not a directory", path),
                "name a directory in memory.nvme[].path");
  }
}

Bytes direct_alignment(int descriptor) {
  Bytes alignment = 0;
  struct statx info {};
  if (::statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
      (info.stx_mask & STATX_DIOALIGN)) {
    alignment = std::max(info.stx_dio_offset_align, info.stx_dio_mem_align);
  }
  int block = 0;
  if (alignment == 0 && ::ioctl(descriptor, BLKSSZGET, &block) == 0 && block > 0) {
    alignment = static_cast<Bytes>(block);
  }
  // Less than 4096 would do on many drives but gains nothing, and a larger physical block is then
  // cut.
  alignment = std::max<Bytes>(alignment, 4096);
  ZINF_CHECK((alignment & (alignment - 1)) == 0, "alignment is a power of two");
  return alignment;
}

DirectoryFacts probe_directory(const std::string& path) {
  check_directory(path);
  DirectoryFacts facts;
  facts.file_system = file_system_name(path);
  Descriptor file{open_nameless(path, O_DIRECT)};
  int error = file.value < 0 ? -file.value : 0;
  if (error == 0) {
    facts.alignment = direct_alignment(file.value);
    error = try_block(file.value, facts.alignment);
    facts.direct = error == 0;
  }
  if (error == EINVAL || error == EOPNOTSUPP) {
    facts.why_buffered = errno_text(error);
    Descriptor buffered{open_nameless(path, 0)};
    error = buffered.value < 0 ? -buffered.value : try_block(buffered.value, facts.alignment);
  }
  if (error == EILSEQ) {
    throw Error(ErrorKind::kFailed,
                fmt::format("a block written to swap directory {} read back differently", path),
                "the drive or its file system is damaged; check dmesg");
  }
  if (error != 0) refuse(path, error);
  return facts;
}

Bytes free_bytes(const std::string& path) {
  struct statvfs info {};
  if (::statvfs(path.c_str(), &info) != 0) return 0;
  return static_cast<Bytes>(info.f_bavail) * info.f_frsize;
}

Bytes taken_bytes(const std::string& file) {
  struct stat info {};
  return ::lstat(file.c_str(), &info) == 0 ? static_cast<Bytes>(info.st_blocks) * 512 : 0;
}

bool is_memory(const std::string& file_system) {
  return file_system == "tmpfs" || file_system == "ramfs";
}

bool is_in_memory(const std::string& path) { return is_memory(file_system_name(path)); }

std::uint64_t file_system_id(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? info.st_dev : 0;
}

}  // namespace zinf::nvme
