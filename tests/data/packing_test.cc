#include "engine/data/packing.h"

#include <gtest/gtest.h>

#include "engine/base/random.h"

namespace zinf::data {
namespace {

TEST(Packing, LongestFirstIntoTheFullestRow) {
  // 6 | 5+3 | 4+4 -> after 6: room 2; 5: room 3; 4, 4: full; 3 into room 3; 2 into room 2; 1 opens
  // a row.
  const PackedRows rows = pack({{0, 3}, {1, 6}, {2, 4}, {3, 5}, {4, 4}, {5, 2}, {6, 1}}, 8);
  EXPECT_EQ(rows.first, (std::vector<std::uint32_t>{0, 2, 4, 6, 7}));
  EXPECT_EQ(rows.items, (std::vector<std::uint32_t>{1, 5, 0, 3, 2, 4, 6}));
}

TEST(Packing, NothingGivesNoRow) { EXPECT_EQ(pack({}, 8).rows(), 0u); }

TEST(Packing, EveryPieceOnceAndLittleRoomIsLeft) {
  constexpr std::uint32_t kCapacity = 512;
  std::vector<Piece> pieces;
  std::uint64_t total = 0;
  for (std::uint32_t i = 0; i < 5000; ++i) {
    pieces.push_back({i, static_cast<std::uint32_t>(1 + random_below(3, i, 300))});
    total += pieces.back().length;
  }
  const PackedRows rows = pack(pieces, kCapacity);
  std::vector<int> seen(pieces.size(), 0);
  for (std::size_t row = 0; row < rows.rows(); ++row) {
    std::uint64_t used = 0;
    for (std::uint32_t i = rows.first[row]; i < rows.first[row + 1]; ++i) {
      used += pieces[rows.items[i]].length;
      ++seen[rows.items[i]];
    }
    EXPECT_LE(used, kCapacity);
  }
  EXPECT_EQ(seen, std::vector<int>(pieces.size(), 1));
  EXPECT_LE(rows.rows(), total / kCapacity + 2);
}

}  // namespace
}  // namespace zinf::data
