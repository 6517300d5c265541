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

PageStream::PageStream(const StatePages& state, Bytes position, std::vector<std::uint64_t>& sums)
    : place_(state.offset + position),
      page_bytes_(state.page_bytes),
      extent_bytes_(state.extent_bytes),
      whole_(whole_pages(state)),
      sums_(sums.data()) {
  ZINF_CHECK(place_ % page_bytes_ == 0 && sums.size() == whole_.count, "a stream starts at a page");
}

void PageStream::feed(const std::byte* data, Bytes bytes) {
  while (bytes > 0) {
    const Bytes page = place_ / page_bytes_;
    const Bytes end = std::min((page + 1) * page_bytes_, extent_bytes_);
    const Bytes part = std::min(bytes, end - place_);
    if (page - whole_.first < whole_.count) {
      hasher_.update(data, part);
      if (place_ + part == end) {
        sums_[page - whole_.first] = hasher_.digest();
        hasher_.reset();
      }
    }
    place_ += part;
    data += part;
    bytes -= part;
  }
}

}  // namespace zinf::optim
