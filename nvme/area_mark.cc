#include "nvme/area_mark.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "nvme/errno_text.h"

namespace zinf::nvme {

namespace {

constexpr char kMagic[9] = "ZINFMARK";
constexpr off_t kMarkAt = 4096;
constexpr std::size_t kBlock = 4096, kNoteAt = 28, kHashAt = kBlock - 8;

using Block = std::array<char, kBlock>;

}  // namespace

std::optional<AreaMark> read_area_mark(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return std::nullopt;
  Block block{};
  const bool whole = ::pread(file, block.data(), kBlock, kMarkAt) == static_cast<ssize_t>(kBlock);
  ::close(file);
  std::uint64_t hash = 0;
  std::uint32_t size = 0;
  std::memcpy(&hash, &block[kHashAt], sizeof hash);
  std::memcpy(&size, &block[24], sizeof size);
  if (!whole || std::memcmp(block.data(), kMagic, 8) != 0 ||
      hash != xxh3_64(block.data(), kHashAt) || size > kHashAt - kNoteAt)
    return std::nullopt;
  AreaMark mark;
  std::memcpy(mark.owner.data(), &block[8], sizeof mark.owner);
  mark.note.assign(&block[kNoteAt], size);
  return mark;
}

void write_area_mark(const std::string& path, const AreaMark& mark) {
  Block block{};
  const auto size = static_cast<std::uint32_t>(std::min(mark.note.size(), kHashAt - kNoteAt));
  std::memcpy(block.data(), kMagic, 8);
  std::memcpy(&block[8], mark.owner.data(), sizeof mark.owner);
  std::memcpy(&block[24], &size, sizeof size);
  std::memcpy(&block[kNoteAt], mark.note.data(), size);
  const std::uint64_t hash = xxh3_64(block.data(), kHashAt);
  std::memcpy(&block[kHashAt], &hash, sizeof hash);
  const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
  bool done = file >= 0;
  errno = done ? ENOSPC : errno;  // a short write sets none
  done = done && ::pwrite(file, block.data(), kBlock, kMarkAt) == static_cast<ssize_t>(kBlock) &&
         ::fdatasync(file) == 0;
  const int error = errno;
  if (file >= 0) ::close(file);
  if (!done)
    throw Error(ErrorKind::kFailed, fmt::format("marking {}: {}", path, errno_text(error)));
}

}  // namespace zinf::nvme
