#include "nvme/area_header.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "nvme/errno_text.h"
#include "nvme/io_failure.h"

namespace zinf::nvme {

namespace {

constexpr char kMagic[9] = "ZINFAREA";
constexpr std::uint32_t kVersion = 1;  // never changes meaning; a new layout is a new number
constexpr Bytes kHeaderBytes = 4096;
constexpr std::size_t kHashAt = kHeaderBytes - 8;
static_assert(std::endian::native == std::endian::little, "the header is little-endian");

using Block = std::unique_ptr<std::byte, decltype(&std::free)>;

Block zero_block(Bytes bytes) {
  Block block(static_cast<std::byte*>(std::aligned_alloc(bytes, bytes)), &std::free);
  std::memset(block.get(), 0, bytes);
  return block;
}

template <typename T>
void put(std::byte* block, std::size_t at, T value) {
  std::memcpy(block + at, &value, sizeof value);
}

template <typename T>
T get(const std::byte* block, std::size_t at) {
  T value;
  std::memcpy(&value, block + at, sizeof value);
  return value;
}

[[noreturn]] void fail(const SwapFile& file, const std::string& what,
                       const std::string& hint = "") {
  throw Error(ErrorKind::kFailed, fmt::format("swap area {} {}", file.path(), what), hint);
}

}  // namespace

void write_area_header(const SwapFile& file, const AreaHeader& header) {
  ZINF_CHECK(header.stripe_counts.size() <= kMostDrives, "too many drives");
  const Bytes bytes = std::max(kHeaderBytes, file.alignment());
  const Block block = zero_block(bytes);
  std::byte* b = block.get();
  std::memcpy(b, kMagic, 8);
  put(b, 8, kVersion);
  put(b, 12, header.drive);
  put(b, 16, static_cast<std::uint32_t>(header.stripe_counts.size()));
  put(b, 24, static_cast<std::uint64_t>(header.stripe_unit));
  put(b, 32, static_cast<std::uint64_t>(header.logical_bytes));
  put(b, 40, header.area_id[0]);
  put(b, 48, header.area_id[1]);
  for (std::size_t i = 0; i < header.stripe_counts.size(); ++i)
    put(b, 56 + 4 * i, header.stripe_counts[i]);
  put(b, kHashAt, xxh3_64(b, kHashAt));
  errno = ENOSPC;  // a short write sets none
  if (::pwrite(file.descriptor(), b, bytes, 0) != static_cast<ssize_t>(bytes)) {
    throw failed_with({IoOp::kWrite, file.path(), file.descriptor(), 0, bytes}, errno)->to_error();
  }
  file.sync();
}

AreaHeader read_area_header(const SwapFile& file) {
  const Bytes bytes = std::max(kHeaderBytes, file.alignment());
  const Block block = zero_block(bytes);
  std::byte* b = block.get();
  const ssize_t got = ::pread(file.descriptor(), b, bytes, 0);
  if (got < 0)
    throw failed_with({IoOp::kRead, file.path(), file.descriptor(), 0, bytes}, errno)->to_error();
  if (static_cast<Bytes>(got) < kHeaderBytes)
    fail(file, fmt::format("is cut: it has {} bytes", file.bytes()));
  if (std::memcmp(b, kMagic, 8) != 0)
    fail(file, "is no swap area: its first bytes are not \"ZINFAREA\"");
  const auto version = get<std::uint32_t>(b, 8);
  if (version != kVersion) {
    fail(file, fmt::format("has version {}, this program reads version {}", version, kVersion),
         "use the program that wrote it");
  }
  if (get<std::uint64_t>(b, kHashAt) != xxh3_64(b, kHashAt))
    fail(file, "has a damaged header (bytes 0 to 4095)");
  AreaHeader header;
  header.drive = get<std::uint32_t>(b, 12);
  const auto drives = get<std::uint32_t>(b, 16);
  header.stripe_unit = get<std::uint64_t>(b, 24);
  header.logical_bytes = get<std::uint64_t>(b, 32);
  header.area_id = {get<std::uint64_t>(b, 40), get<std::uint64_t>(b, 48)};
  if (drives == 0 || drives > kMostDrives || header.drive >= drives || header.stripe_unit == 0) {
    fail(file, "has a header that makes no sense");
  }
  std::uint64_t cycle = 0;
  for (std::size_t i = 0; i < drives; ++i) {
    header.stripe_counts.push_back(get<std::uint32_t>(b, 56 + 4 * i));
    cycle += header.stripe_counts.back();
    if (header.stripe_counts.back() == 0 || cycle > 4096)
      fail(file, "has a header that makes no sense");
  }
  return header;
}

std::array<std::uint64_t, 2> make_area_id() {
  std::array<std::uint64_t, 2> id{};
  // Only tells areas apart; no result depends on it.
  if (::getrandom(id.data(), sizeof id, 0) != sizeof id)
    id = {static_cast<std::uint64_t>(::getpid()), 0};
  return id;
}

}  // namespace zinf::nvme
