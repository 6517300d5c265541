// Checksums of fixed pages of the states (xxh3), taken by the update while it has their bytes in
// cache: what was read is summed before it is updated, what will be written right after.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu_optim/state_schema.h"
#include "cpu_optim/threads.h"
#include "engine/base/bytes.h"
#include "engine/base/hash.h"

namespace zinf::optim {

// One state of an update's range. Pages are counted from the start of the extent that the range is
// part of; the last may be short. Only those that lie whole in the range are summed.
struct StatePages {
  Bytes offset = 0;  // in the extent, of the range's first byte
  Bytes bytes = 0;   // of the range, with the padding behind the last element
  Bytes extent_bytes = 0;
  Bytes page_bytes = 256 * kKiB;
  bool sum_before = false;  // wanted: sums of what was read
  bool sum_after = false;   // wanted: sums of what the update leaves
  // Set by the update: one per whole page, ascending.
  std::vector<std::uint64_t> before, after;
};

struct UpdatePages {
  std::array<StatePages, kMaxStates> state;
};

// Index of the first whole page, and how many there are.
struct WholePages {
  Bytes first = 0;
  Bytes count = 0;
};
WholePages whole_pages(const StatePages& state);

// The same sums in one go, pages in parallel: for ranges that begin within a page.
void sum_pages(Pool& pool, const std::byte* data, const StatePages& state,
               std::vector<std::uint64_t>& sums);

// Sums the pages of one state in passing, in blocks of the hash: those that the update is about to
// change, or those that it has left behind. Nothing is copied: the one takes the block that the
// update's next bytes begin in whole, the other waits for a block to be complete.
class PageStream {
 public:
  PageStream() = default;
  // data: of the range. position: in the range, of the first byte to come, at a page border.
  PageStream(const StatePages& state, const std::byte* data, Bytes position,
             std::vector<std::uint64_t>& sums);
  // Pages are a multiple of the hash's blocks.
  static bool can_sum(const StatePages& state);
  // Takes what the range has before this position, up to a block more.
  void before_update(Bytes end) { advance(end, true); }
  // Takes what the range has before this position, up to a block less.
  void after_update(Bytes end) { advance(end, false); }
  bool active() const { return sums_ != nullptr; }

 private:
  void advance(Bytes end, bool whole_blocks);
  void start_page();

  const std::byte* data_ = nullptr;  // what comes next
  Bytes place_ = 0, range_end_ = 0;  // of it, and the end of the whole pages: in the range
  Bytes page_left_ = 0, page_length_ = 0;
  Bytes page_bytes_ = 0;
  std::uint64_t* sums_ = nullptr;  // of the page under way
  BlockHasher hasher_;
};

}  // namespace zinf::optim
