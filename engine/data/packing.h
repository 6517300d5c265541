// Packing: which documents share a row.
#pragma once

#include <cstdint>
#include <vector>

namespace zinf::data {

struct Piece {
  std::uint32_t item = 0;    // caller's number
  std::uint32_t length = 0;  // 1 .. capacity
};

// Rows as slices of one list: row r holds items[first[r]] .. items[first[r + 1] - 1].
struct PackedRows {
  std::vector<std::uint32_t> items;
  std::vector<std::uint32_t> first{0};
  std::size_t rows() const { return first.size() - 1; }
};

// Best-fit decreasing: the longest piece first, each into the fullest row that still takes it;
// within a row in ascending item number. A pure function of its arguments; O(n log capacity).
PackedRows pack(std::vector<Piece> pieces, std::uint32_t capacity);

}  // namespace zinf::data
