#include "nvme/huge_buffer.h"

#include <fmt/format.h>
#include <linux/mman.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#include "engine/base/error.h"
#include "nvme/errno_text.h"

namespace zinf::nvme {

namespace {

constexpr Bytes kHugePage = 2 * kMiB;

// AnonHugePages of the mapping that holds the address, in bytes.
Bytes huge_bytes_at(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t from = 0, to = 0;
    unsigned long kib = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2)
      inside = from <= wanted && wanted < to;
    if (inside && std::sscanf(line.c_str(), "AnonHugePages: %lu kB", &kib) == 1) return kib * kKiB;
  }
  return 0;
}

}  // namespace

HugeBuffer::HugeBuffer(Bytes bytes, bool want_huge) : bytes_(round_up(bytes, kHugePage)) {
  // Reserved pages where they hold all of it, as training's buffers: mapping them counts them out.
  if (want_huge) {
    mapping_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | 21 << MAP_HUGE_SHIFT, -1, 0);
    // They may be counted out and not be had (a limit of the cgroup): a touch would kill us then.
    if (mapping_ != MAP_FAILED && ::madvise(mapping_, bytes_, MADV_POPULATE_WRITE) != 0) {
      ::munmap(mapping_, bytes_);
      mapping_ = MAP_FAILED;
    }
    if (mapping_ != MAP_FAILED) {
      mapped_ = bytes_;
      data_ = static_cast<std::byte*>(mapping_);
      huge_ = true;
      fill();
      return;
    }
  }
  mapped_ = bytes_ + kHugePage;
  mapping_ = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) {
    throw Error(ErrorKind::kDoesNotFit, fmt::format("no {} of memory for a measurement: {}",
                                                    format_bytes(bytes_), errno_text(errno)));
  }
  const auto start = reinterpret_cast<std::uintptr_t>(mapping_);
  data_ = reinterpret_cast<std::byte*>(round_up(start, kHugePage));
  ::madvise(data_, bytes_, want_huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  fill();
  huge_ = huge_bytes_at(data_) >= bytes_;
}

// Not zeros: some drives and file systems treat those specially.
void HugeBuffer::fill() {
  for (Bytes i = 0; i < bytes_; i += 8) {
    const std::uint64_t word = i * 0x9E3779B97F4A7C15ull + 1;
    __builtin_memcpy(data_ + i, &word, 8);
  }
}

HugeBuffer::~HugeBuffer() { ::munmap(mapping_, mapped_); }

}  // namespace zinf::nvme
