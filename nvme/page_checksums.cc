#include "nvme/page_checksums.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/hash.h"

namespace zinf::nvme {

namespace {

std::span<const std::byte> page_of(std::span<const std::byte> data, std::size_t page) {
  const std::size_t start = page * kChecksumPage;
  return data.subspan(start, std::min<std::size_t>(kChecksumPage, data.size() - start));
}

}  // namespace

void hash_pages(std::span<const std::byte> data, std::span<std::uint64_t> pages) {
  ZINF_CHECK(pages.size() == page_count(data.size()), "one checksum per page");
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const auto page = page_of(data, i);
    pages[i] = xxh3_64(page.data(), page.size());
  }
}

std::optional<std::size_t> first_bad_page(std::span<const std::byte> data,
                                          std::span<const std::uint64_t> pages) {
  ZINF_CHECK(pages.size() == page_count(data.size()), "one checksum per page");
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const auto page = page_of(data, i);
    if (xxh3_64(page.data(), page.size()) != pages[i]) return i;
  }
  return std::nullopt;
}

}  // namespace zinf::nvme
