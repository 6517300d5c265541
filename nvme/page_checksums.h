// One xxh3 (64 bits, seed 0) per page, counted from the start of an extent; the last page may be
// shorter. An extent's maker says how large its pages are, so that its writes end with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "engine/base/bytes.h"

namespace zinf::nvme {

constexpr Bytes kChecksumPage = 256 * kKiB;  // where nothing else is asked for

constexpr std::size_t page_count(Bytes bytes, Bytes page_bytes = kChecksumPage) {
  return static_cast<std::size_t>((bytes + page_bytes - 1) / page_bytes);
}

// Pages of kChecksumPage. `data` starts at a page border; `pages` has page_count(data.size())
// entries.
void hash_pages(std::span<const std::byte> data, std::span<std::uint64_t> pages);
// The first page whose checksum differs, counted from the start of `data`.
std::optional<std::size_t> first_bad_page(std::span<const std::byte> data,
                                          std::span<const std::uint64_t> pages);

}  // namespace zinf::nvme
