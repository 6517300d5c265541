#include "nvme/page_table.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/hash.h"

namespace zinf::nvme {

namespace {

// 0 stands for "unknown".
std::uint64_t stored(std::uint64_t sum) { return sum == 0 ? 1 : sum; }

std::vector<std::atomic<std::uint64_t>> unknown_pages(std::span<const PageTable::Size> sizes) {
  std::size_t pages = 0;
  for (const PageTable::Size& size : sizes) pages += page_count(size.bytes, size.page_bytes);
  return std::vector<std::atomic<std::uint64_t>>(pages);
}

}  // namespace

PageTable::PageTable(std::span<const Size> sizes) : pages_(unknown_pages(sizes)) {
  std::size_t first = 0;
  for (const Size& size : sizes) {
    extents_.push_back({size, first});
    first += extents_.back().count();
  }
}

template <typename Visit>
void PageTable::each_whole_page(const Extent& extent, Bytes offset, Bytes bytes,
                                Visit visit) const {
  const Bytes end = offset + bytes, size = extent.page_bytes;
  for (Bytes page = (offset + size - 1) / size;; ++page) {
    const Bytes from = page * size, to = std::min(from + size, extent.bytes);
    if (from >= to || to > end) break;
    visit(static_cast<std::size_t>(page), from - offset, to - from);
  }
}

void PageTable::forget(std::size_t index, Bytes offset, Bytes bytes) {
  const Extent& extent = extents_[index];
  if (bytes == 0) return;
  const Bytes last = (offset + bytes - 1) / extent.page_bytes;
  for (Bytes page = offset / extent.page_bytes; page <= last; ++page) {
    pages_[extent.first + page].store(0, std::memory_order_relaxed);
  }
}

template <typename SumOf>
void PageTable::learn_pages(std::size_t index, Bytes offset, Bytes bytes, SumOf sum_of) {
  const Extent& extent = extents_[index];
  each_whole_page(extent, offset, bytes, [&](std::size_t page, Bytes at, Bytes size) {
    pages_[extent.first + page].store(stored(sum_of(at, size)), std::memory_order_relaxed);
    hashed_.fetch_add(1, std::memory_order_relaxed);
  });
}

void PageTable::learn(std::size_t index, Bytes offset, const std::byte* memory, Bytes bytes) {
  learn_pages(index, offset, bytes,
              [&](Bytes at, Bytes size) { return xxh3_64(memory + at, size); });
}

void PageTable::learn_sums(std::size_t index, Bytes offset, Bytes bytes,
                           std::span<const std::uint64_t> sums) {
  std::size_t next = 0;
  learn_pages(index, offset, bytes, [&](Bytes, Bytes) {
    ZINF_CHECK(next < sums.size(), "one checksum per whole page");
    return sums[next++];
  });
  ZINF_CHECK(next == sums.size(), "one checksum per whole page");
  by_caller_.fetch_add(next, std::memory_order_relaxed);
}

template <typename SumOf>
std::optional<std::size_t> PageTable::check_pages(std::size_t index, Bytes offset, Bytes bytes,
                                                  SumOf sum_of) {
  const Extent& extent = extents_[index];
  std::optional<std::size_t> damaged;
  if (bytes == 0) return damaged;
  const Bytes last = (offset + bytes - 1) / extent.page_bytes;
  std::uint64_t touched = last - offset / extent.page_bytes + 1, good = 0;
  each_whole_page(extent, offset, bytes, [&](std::size_t page, Bytes at, Bytes size) {
    const std::uint64_t expected = pages_[extent.first + page].load(std::memory_order_relaxed);
    if (damaged) return;
    const std::optional<std::uint64_t> found = sum_of(at, size, expected != 0);
    if (expected == 0) return;
    if (stored(*found) != expected) {
      damaged = page;
    } else {
      ++good;
    }
  });
  verified_.fetch_add(good, std::memory_order_relaxed);
  if (!damaged) unknown_.fetch_add(touched - good, std::memory_order_relaxed);
  return damaged;
}

std::optional<std::size_t> PageTable::check(std::size_t index, Bytes offset,
                                            const std::byte* memory, Bytes bytes) {
  return check_pages(index, offset, bytes,
                     [&](Bytes at, Bytes size, bool known) -> std::optional<std::uint64_t> {
                       if (!known) return std::nullopt;  // nothing to compare it with
                       return xxh3_64(memory + at, size);
                     });
}

std::optional<std::size_t> PageTable::check_sums(std::size_t index, Bytes offset, Bytes bytes,
                                                 std::span<const std::uint64_t> sums) {
  std::size_t next = 0, known_pages = 0;
  const auto damaged = check_pages(index, offset, bytes,
                                   [&](Bytes, Bytes, bool known) -> std::optional<std::uint64_t> {
                                     ZINF_CHECK(next < sums.size(), "one checksum per whole page");
                                     known_pages += known;
                                     return sums[next++];
                                   });
  ZINF_CHECK(damaged || next == sums.size(), "one checksum per whole page");
  if (!damaged) by_caller_.fetch_add(known_pages, std::memory_order_relaxed);
  return damaged;
}

std::vector<std::uint64_t> PageTable::values(std::size_t index) const {
  const Extent& extent = extents_.at(index);
  std::vector<std::uint64_t> all(extent.count());
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = pages_[extent.first + i].load(std::memory_order_relaxed);
  return all;
}

void PageTable::restore(std::size_t index, std::span<const std::uint64_t> values) {
  const Extent& extent = extents_.at(index);
  ZINF_CHECK(values.size() == extent.count(), "one checksum per page");
  for (std::size_t i = 0; i < values.size(); ++i)
    pages_[extent.first + i].store(values[i], std::memory_order_relaxed);
}

PageCounters PageTable::counters() const {
  return {hashed_.load(std::memory_order_relaxed), verified_.load(std::memory_order_relaxed),
          unknown_.load(std::memory_order_relaxed), by_caller_.load(std::memory_order_relaxed)};
}

}  // namespace zinf::nvme
