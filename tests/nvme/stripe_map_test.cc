#include "nvme/stripe_map.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace zinf::nvme {
namespace {

TEST(StripeCounts, AreSmallNumbersWithTheRatiosOfTheWeights) {
  EXPECT_EQ(stripe_counts({1.0}), (std::vector<std::uint32_t>{1}));
  EXPECT_EQ(stripe_counts({3.0, 1.0}), (std::vector<std::uint32_t>{3, 1}));
  EXPECT_EQ(stripe_counts({7.0, 3.5, 3.5}), (std::vector<std::uint32_t>{2, 1, 1}));
  for (const double ratio : {1.01, 1.7, 3.14159, 5.0, 17.3}) {
    const auto counts = stripe_counts({ratio, 1.0});
    EXPECT_NEAR(static_cast<double>(counts[0]) / counts[1], ratio, ratio * 0.05) << ratio;
    EXPECT_LE(counts[0] + counts[1], 128u);
  }
}

TEST(StripeMap, EveryByteHasItsOwnPlaceAndDrivesHaveNoGaps) {
  for (const std::vector<std::uint32_t>& counts :
       {std::vector<std::uint32_t>{1}, {1, 1}, {3, 1}, {2, 5, 1}, {1, 1, 1, 1}}) {
    const StripeMap map(counts, 8);
    for (const Bytes total : {0, 1, 7, 8, 9, 64, 100, 257}) {
      std::map<std::size_t, std::set<std::uint64_t>> places;
      for (std::uint64_t at = 0; at < total;) {
        const StripeSegment part = map.first(at, total - at);
        ASSERT_GT(part.bytes, 0u);
        for (Bytes i = 0; i < part.bytes; ++i) {
          ASSERT_TRUE(places[part.drive].insert(part.offset + i).second);
          const StripeSegment single = map.first(at + i, 1);
          ASSERT_EQ(single.drive, part.drive);
          ASSERT_EQ(single.offset, part.offset + i);
        }
        at += part.bytes;
      }
      for (std::size_t d = 0; d < counts.size(); ++d) {
        EXPECT_EQ(places[d].size(), map.drive_bytes(d, total));
        if (places[d].empty()) continue;
        EXPECT_EQ(*places[d].rbegin() + 1, map.drive_bytes(d, total));
      }
    }
  }
}

TEST(StripeMap, LargeOffsetsStay64Bit) {
  const StripeMap map({3, 1}, kMiB);
  const std::uint64_t far = std::uint64_t{1} << 50;
  EXPECT_EQ(map.first(far, 1).offset, far / 4 * 3);
  EXPECT_EQ(map.drive_bytes(1, far), far / 4);
}

}  // namespace
}  // namespace zinf::nvme
