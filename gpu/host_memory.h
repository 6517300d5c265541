// Host memory of exact size on huge pages: reserved ones (vm.nr_hugepages) where they hold all of
// it, else transparent ones, else small ones. mmap + madvise, never an allocator that rounds up to
// a power of two.
#pragma once

#include <cstddef>
#include <string>

#include "engine/base/bytes.h"

namespace zinf::gpu {

// Page sizes a HostMemory can end up on.
enum class PageKind { kHugeReserved, kHugeTransparent, kSmall };

// Owns `bytes` (rounded up to 4 KiB) of zeroed, page-aligned memory; aligned to 2 MiB when at least
// that large. Nothing is resident before it is touched. Throws Error(kDoesNotFit) when the kernel
// refuses. Movable.
class HostMemory {
 public:
  HostMemory() = default;
  HostMemory(Bytes bytes, const std::string& what);
  ~HostMemory();
  HostMemory(HostMemory&& other) noexcept;
  HostMemory& operator=(HostMemory&& other) noexcept;

  std::byte* data() const { return data_; }
  Bytes size() const { return size_; }
  PageKind pages() const { return pages_; }

 private:
  void release();
  std::byte* data_ = nullptr;
  Bytes size_ = 0;
  void* mapping_ = nullptr;
  Bytes mapped_ = 0;
  PageKind pages_ = PageKind::kSmall;
};

}  // namespace zinf::gpu
