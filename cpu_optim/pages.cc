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
    : data_(data),
      offset_(state.offset),
      place_(state.offset + position),
      page_bytes_(state.page_bytes),
      extent_bytes_(state.extent_bytes),
      whole_(whole_pages(state)),
      sums_(sums.data()) {
  ZINF_CHECK(can_sum(state) && place_ % page_bytes_ == 0 && sums.size() == whole_.count,
             "a stream starts at a page");
}

bool PageStream::can_sum(const StatePages& state) {
  return state.page_bytes % BlockHasher::kBlock == 0;
}

void PageStream::advance(Bytes end, bool whole_blocks) {
  constexpr Bytes kBlock = BlockHasher::kBlock;
  end += offset_;
  while (place_ < end) {
    const Bytes page = place_ / page_bytes_;
    if (page - whole_.first >= whole_.count) return;
    const Bytes page_end = std::min((page + 1) * page_bytes_, extent_bytes_);
    const std::byte* data = data_ + (place_ - offset_);
    const Bytes left = page_end - place_;
    if (left % kBlock != 0) {  // the extent's short last page
      if (!whole_blocks && end < page_end) return;
      sums_[page - whole_.first] = xxh3_64(data, left);
      place_ = page_end;
      continue;
    }
    const Bytes bytes = std::min(end - place_, left);
    const Bytes blocks = (bytes + (whole_blocks ? kBlock - 1 : 0)) / kBlock;
    if (blocks * kBlock < left) {
      hasher_.update(data, blocks);
      place_ += blocks * kBlock;
      return;
    }
    hasher_.update(data, blocks - 1);
    const Bytes page_length = page_end - page * page_bytes_;
    sums_[page - whole_.first] = hasher_.finish(data + (blocks - 1) * kBlock, page_length);
    hasher_.reset();
    place_ = page_end;
  }
}

}  // namespace zinf::optim
