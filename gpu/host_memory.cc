#include "gpu/host_memory.h"

#include <linux/mman.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/str.h"

namespace zinf::gpu {

namespace {
constexpr Bytes kSmallPage = 4096;
constexpr Bytes kHugePage = Bytes{2} << 20;
constexpr int kReserved2MiB = MAP_HUGETLB | (21 << MAP_HUGE_SHIFT);

void* map_at(void* where, Bytes bytes, int more) {
  return mmap(where, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | more, -1, 0);
}

// In place of what is mapped there; the kernel sets all pages aside at once or refuses. A refused
// MAP_FIXED may leave a hole, which another thread's mapping (its stack, say) can take before this
// one has filled it again. So the pages are first asked for elsewhere, where a refusal harms
// nobody.
bool take_reserved_pages(std::byte* data, Bytes bytes) {
  void* const elsewhere = map_at(nullptr, bytes, kReserved2MiB);
  if (elsewhere == MAP_FAILED) return false;
  munmap(elsewhere, bytes);
  if (map_at(data, bytes, kReserved2MiB | MAP_FIXED) != MAP_FAILED) return true;
  // Another process took them in between. Fills a hole, and replaces nothing.
  map_at(data, bytes, MAP_NORESERVE | MAP_FIXED_NOREPLACE);
  return false;
}
}  // namespace

HostMemory::HostMemory(Bytes bytes, const std::string& what) : size_(round_up(bytes, kSmallPage)) {
  if (size_ == 0) return;
  const bool huge = size_ >= kHugePage;
  mapped_ = size_ + (huge ? kHugePage : 0);
  mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    throw Error(ErrorKind::kDoesNotFit,
                str("could not map ", format_bytes(size_), " of memory for ", what, ": ",
                    std::strerror(errno)),
                "lower memory.host, or raise the limit on address space (ulimit -v)");
  }
  auto address = reinterpret_cast<std::uintptr_t>(mapping_);
  if (huge) address = round_up(address, kHugePage);
  data_ = reinterpret_cast<std::byte*>(address);
  // A tail shorter than a huge page stays on small pages, so that resident memory never exceeds the
  // exact size.
  const Bytes whole = size_ / kHugePage * kHugePage;
  if (huge && take_reserved_pages(data_, whole)) {
    pages_ = PageKind::kHugeReserved;
    return;
  }
  if (huge && madvise(data_, whole, MADV_HUGEPAGE) == 0) pages_ = PageKind::kHugeTransparent;
}

HostMemory::~HostMemory() { release(); }

HostMemory::HostMemory(HostMemory&& other) noexcept { *this = std::move(other); }

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  if (this == &other) return *this;
  release();
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  mapping_ = std::exchange(other.mapping_, nullptr);
  mapped_ = std::exchange(other.mapped_, 0);
  pages_ = other.pages_;
  return *this;
}

void HostMemory::release() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
  mapping_ = nullptr;
}

}  // namespace zinf::gpu
