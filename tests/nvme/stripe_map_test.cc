#include "nvme/stripe_map.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "engine/base/random.h"

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

TEST(StripeCounts, FillADriveWithoutRoomAndKeepTheRatiosOfTheOthers) {
  const Bytes gib = kGiB, unit = 2 * kMiB;
  // Room for all: the ratios of the weights.
  EXPECT_EQ(stripe_counts({3, 1}, {8 * gib, 8 * gib}, 10 * gib, unit),
            (std::vector<std::uint32_t>{3, 1}));
  // More than there is room for: the same, for the caller to refuse.
  EXPECT_EQ(stripe_counts({3, 1}, {gib, gib}, 10 * gib, unit), (std::vector<std::uint32_t>{3, 1}));
  // The first would get 6 GiB of 10 and has room for 2; the other two share 8 as 3 to 1.
  const auto counts = stripe_counts({6, 3, 1}, {2 * gib, 20 * gib, 20 * gib}, 10 * gib, unit);
  const StripeMap map(counts, unit);
  const auto bytes = [&](std::size_t drive) {
    return static_cast<double>(map.drive_bytes(drive, 10 * gib));
  };
  EXPECT_LE(bytes(0), 2.0 * gib);
  EXPECT_GT(bytes(0), 1.98 * gib);
  EXPECT_NEAR(bytes(1) / bytes(2), 3, 0.01);
}

TEST(StripeCounts, FitWhereverThereIsALittleMoreRoomThanIsNeeded) {
  int capped = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    std::uint64_t draw = 0;
    const auto random = [&](Bytes least, Bytes most) {
      return least + random_bits(seed, draw++) % (most - least + 1);
    };
    const Bytes unit = 2 * kMiB, total = random(unit, 100 * kGiB);
    const std::size_t drives = random(1, 6);
    std::vector<double> weights;
    std::vector<Bytes> room;
    Bytes sum = 0;
    for (std::size_t i = 0; i < drives; ++i) {
      weights.push_back(0.1 + static_cast<double>(random(0, 1000)) / 100);
      room.push_back(total / 100 + 4 * unit + random(0, 2 * total / drives));
      sum += room.back();
    }
    // Rounding to whole units, and to the shares of a cycle, takes a little.
    if (sum < total + total / 500 + 4 * unit * drives) continue;
    const auto counts = stripe_counts(weights, room, total, unit);
    capped += counts != stripe_counts(weights);
    const StripeMap map(counts, unit);
    for (std::size_t i = 0; i < drives; ++i)
      ASSERT_LE(map.drive_bytes(i, total), room[i]) << "seed " << seed << ", drive " << i;
  }
  EXPECT_GT(capped, 100);
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
