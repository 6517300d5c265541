#include "cpu_optim/pages.h"

#include <algorithm>

#include "engine/base/error.h"

namespace zinf::optim {

WholePages whole_pages(const StatePages& state) {
  const Bytes page_bytes = state.page_bytes;
  const Bytes first = (state.offset + page_bytes - 1) / page_bytes;
  const Bytes end = state.offset + state.bytes;
  ZINF_CHECK(end <= state.extent_bytes, "a range lies in its extent");
  const Bytes last =
      end == state.extent_bytes ? (end + page_bytes - 1) / page_bytes : end / page_bytes;
  return {first, last > first ? last - first : 0};
}

void sum_pages(Pool& pool, const std::byte* data, const StatePages& state,
               std::vector<std::uint64_t>& sums) {
  const WholePages whole = whole_pages(state);
  sums.assign(whole.count, 0);
  pool.for_each(static_cast<std::int64_t>(whole.count), [&](std::int64_t i) {
    const Bytes from = (whole.first + static_cast<Bytes>(i)) * state.page_bytes;
    const Bytes to = std::min(from + state.page_bytes, state.extent_bytes);
    sums[static_cast<std::size_t>(i)] = xxh3_64(data + (from - state.offset), to - from);
  });
}

PageStream::PageStream(const StatePages& state, const std::byte* data, Bytes position,
                       std::vector<std::uint64_t>& sums)
    : data_(data + position), place_(position), page_bytes_(state.page_bytes), sums_(sums.data()) {
  const WholePages whole = whole_pages(state);
  const Bytes page = (state.offset + position) / page_bytes_;
  ZINF_CHECK(can_sum(state) && (state.offset + position) % page_bytes_ == 0 &&
                 sums.size() == whole.count && page >= whole.first,
             "a stream starts at a page");
  sums_ += page - whole.first;
  range_end_ =
      std::min((whole.first + whole.count) * page_bytes_, state.extent_bytes) - state.offset;
  start_page();
}

void PageStream::start_page() {
  page_left_ = page_length_ = place_ < range_end_ ? std::min(page_bytes_, range_end_ - place_) : 0;
}

bool PageStream::can_sum(const StatePages& state) {
  return state.page_bytes % BlockHasher::kBlock == 0;
}

void PageStream::advance(Bytes end, bool whole_blocks) {
  constexpr Bytes kBlock = BlockHasher::kBlock;
  while (place_ < end && page_left_ > 0) {
    Bytes bytes = std::min(end - place_, page_left_);
    if (page_length_ % kBlock != 0) {  // the extent's short last page
      if (!whole_blocks && bytes < page_left_) return;
      bytes = page_left_;
      *sums_ = xxh3_64(data_, bytes);
    } else {
      const Bytes blocks = (bytes + (whole_blocks ? kBlock - 1 : 0)) / kBlock;
      bytes = blocks * kBlock;
      if (bytes == page_left_) {
        hasher_.update(data_, blocks - 1);
        *sums_ = hasher_.finish(data_ + bytes - kBlock, page_length_);
        hasher_.reset();
      } else {
        hasher_.update(data_, blocks);
      }
    }
    data_ += bytes;
    place_ += bytes;
    page_left_ -= bytes;
    if (page_left_ > 0) return;
    ++sums_;
    start_page();
  }
}

}  // namespace zinf::optim
