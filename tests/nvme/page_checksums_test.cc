#include "nvme/page_checksums.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/nvme/test_support.h"

namespace zinf::nvme {
namespace {

TEST(PageChecksums, CountPagesOf256KiBAndAShortLastOne) {
  EXPECT_EQ(page_count(0), 0u);
  EXPECT_EQ(page_count(1), 1u);
  EXPECT_EQ(page_count(256 * kKiB), 1u);
  EXPECT_EQ(page_count(256 * kKiB + 1), 2u);
  EXPECT_EQ(page_count(8589934848), 32769u);
}

TEST(PageChecksums, NameTheFirstPageWithAFlippedBit) {
  Memory memory(2 * kChecksumPage + 4096);
  memory.fill(1);
  const std::span<const std::byte> data(memory.data(), memory.size());
  std::vector<std::uint64_t> pages(page_count(memory.size()));
  hash_pages(data, pages);
  EXPECT_EQ(first_bad_page(data, pages), std::nullopt);
  for (const std::size_t at :
       {std::size_t{0}, kChecksumPage - 1, kChecksumPage, 2 * kChecksumPage, memory.size() - 1}) {
    memory.data()[at] ^= std::byte{0x10};
    EXPECT_EQ(first_bad_page(data, pages), at / kChecksumPage);
    memory.data()[at] ^= std::byte{0x10};
  }
  memory.data()[0] ^= std::byte{1};
  memory.data()[2 * kChecksumPage] ^= std::byte{1};
  EXPECT_EQ(first_bad_page(data, pages), 0u);
}

// The values are in manifests: they never change. xxh3_64 of 256 KiB of zeros and of 4 KiB of
// zeros.
TEST(PageChecksums, HaveFixedValues) {
  const std::vector<std::byte> zeros(kChecksumPage + 4096);
  std::vector<std::uint64_t> pages(2);
  hash_pages(zeros, pages);
  EXPECT_EQ(pages[0], 0x2D64C035E85FB928ull);
  EXPECT_EQ(pages[1], 0x93D76FE148C689BAull);
}

}  // namespace
}  // namespace zinf::nvme
