#include "engine/model/workspace_arena.h"

#include <algorithm>
#include <cstdint>

#include "engine/base/error.h"
#include "engine/base/str.h"

namespace zinf::model {

WorkspaceArena::WorkspaceArena(std::span<std::byte> memory) {
  const auto start = reinterpret_cast<std::uintptr_t>(memory.data());
  lead_ = round_up(start, kAlignment) - start;
  if (lead_ >= memory.size()) return;
  base_ = memory.data() + lead_;
  size_ = (memory.size() - lead_) / kAlignment * kAlignment;
  if (size_ > 0) free_[0] = size_;
}

std::byte* WorkspaceArena::allocate(Bytes bytes) {
  const Bytes size = round_up(bytes, kAlignment);
  auto best = free_.end();
  Bytes largest = 0;
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    largest = std::max(largest, it->second);
    if (it->second < size) continue;
    // The block at the very end comes last, however small: then places do not depend on the
    // workspace's size, and one of exactly the measured peak is enough.
    const bool at_end = it->first + it->second == size_;
    if (best == free_.end() || (!at_end && it->second < best->second)) best = it;
  }
  if (best == free_.end()) {
    throw Error(ErrorKind::kFailed,
                str("compute workspace: needed ", format_bytes(size), " more, found at most ",
                    format_bytes(largest), " in one block (workspace ", format_bytes(size_),
                    ", in use ", format_bytes(used_), ")"),
                "this shape needs a larger workspace than was planned: lower the micro-batch or "
                "the sequence length, "
                "or give the device tier more memory");
  }
  const Bytes offset = best->first;
  const Bytes rest = best->second - size;
  free_.erase(best);
  if (rest > 0) free_[offset + size] = rest;
  taken_[offset] = size;
  used_ += size;
  peak_ = std::max(peak_, lead_ + offset + size);
  return base_ + offset;
}

void WorkspaceArena::release(void* block) {
  ZINF_CHECK(owns(block), "block is not from this workspace");
  const auto taken = taken_.find(static_cast<Bytes>(static_cast<std::byte*>(block) - base_));
  ZINF_CHECK(taken != taken_.end(), "block released twice, or never allocated");
  used_ -= taken->second;
  auto here = free_.emplace(taken->first, taken->second).first;
  taken_.erase(taken);
  const auto next = std::next(here);
  if (next != free_.end() && here->first + here->second == next->first) {
    here->second += next->second;
    free_.erase(next);
  }
  if (here != free_.begin()) {
    const auto before = std::prev(here);
    if (before->first + before->second == here->first) {
      before->second += here->second;
      free_.erase(here);
    }
  }
}

}  // namespace zinf::model
