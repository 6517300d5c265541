// Best-fit allocation with coalescing over one span. Not thread-safe; holds no memory of its own
// but bookkeeping.
#pragma once

#include <cstddef>
#include <map>
#include <span>

#include "engine/base/bytes.h"

namespace zinf::model {

class WorkspaceArena {
 public:
  // Blocks start at multiples of this, so that results of libraries which look at alignment do not
  // vary.
  static constexpr Bytes kAlignment = 256;

  explicit WorkspaceArena(std::span<std::byte> memory);

  // Throws Error(kFailed) with sizes when no free block is large enough. bytes > 0.
  std::byte* allocate(Bytes bytes);
  // `block` must have come from allocate().
  void release(void* block);

  bool owns(const void* address) const { return address >= base_ && address < base_ + size_; }
  Bytes used() const { return used_; }
  std::size_t blocks() const { return taken_.size(); }
  Bytes peak() const {
    return peak_;
  }  // from the start of `memory` to the end of the furthest block ever

 private:
  std::byte* base_ = nullptr;
  Bytes lead_ = 0;  // bytes skipped at the front to reach alignment
  Bytes size_ = 0;
  Bytes used_ = 0;
  Bytes peak_ = 0;
  std::map<Bytes, Bytes> free_;   // offset -> size
  std::map<Bytes, Bytes> taken_;  // offset -> size
};

}  // namespace zinf::model
