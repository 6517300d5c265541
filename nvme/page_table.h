// The checksums of the pages of a store's extents, in memory: set when a page is written whole,
// compared when it is read whole. A page written in parts, or not since the table was made, is
// unknown and not compared; both are counted. Thread-safe for requests that do not overlap, as the
// store demands of them anyway.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/bytes.h"
#include "nvme/page_checksums.h"

namespace zinf::nvme {

struct PageCounters {
  std::uint64_t hashed = 0;     // pages written
  std::uint64_t verified = 0;   // pages read and found right
  std::uint64_t unknown = 0;    // pages read in part or without a checksum
  std::uint64_t by_caller = 0;  // of hashed and verified: where the caller took the checksum
};

class PageTable {
 public:
  struct Size {
    Bytes bytes = 0;
    Bytes page_bytes = kChecksumPage;
  };
  // Of extent i.
  explicit PageTable(std::span<const Size> sizes);

  // A write of this range begins: what was known of its pages no longer holds.
  void forget(std::size_t extent, Bytes offset, Bytes bytes);
  // It has succeeded from this memory.
  void learn(std::size_t extent, Bytes offset, const std::byte* memory, Bytes bytes);
  // A read has succeeded into this memory: the first page of the extent that is damaged.
  std::optional<std::size_t> check(std::size_t extent, Bytes offset, const std::byte* memory,
                                   Bytes bytes);
  // The same from checksums of the range's whole pages, ascending, that someone else took (xxh3, as
  // in page_checksums.h).
  void learn_sums(std::size_t extent, Bytes offset, Bytes bytes,
                  std::span<const std::uint64_t> sums);
  std::optional<std::size_t> check_sums(std::size_t extent, Bytes offset, Bytes bytes,
                                        std::span<const std::uint64_t> sums);

  // One value a page, 0 where unknown.
  std::vector<std::uint64_t> values(std::size_t extent) const;
  void restore(std::size_t extent, std::span<const std::uint64_t> values);
  PageCounters counters() const;

 private:
  struct Extent : Size {
    std::size_t first = 0;  // its first page in pages_
    std::size_t count() const { return page_count(bytes, page_bytes); }
  };
  template <typename Visit>
  void each_whole_page(const Extent& extent, Bytes offset, Bytes bytes, Visit visit) const;
  template <typename SumOf>
  void learn_pages(std::size_t extent, Bytes offset, Bytes bytes, SumOf sum_of);
  template <typename SumOf>
  std::optional<std::size_t> check_pages(std::size_t extent, Bytes offset, Bytes bytes,
                                         SumOf sum_of);

  std::vector<Extent> extents_;
  std::vector<std::atomic<std::uint64_t>> pages_;
  std::atomic<std::uint64_t> hashed_ = 0, verified_ = 0, unknown_ = 0, by_caller_ = 0;
};

}  // namespace zinf::nvme
