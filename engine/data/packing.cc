#include "engine/data/packing.h"

#include <algorithm>
#include <set>

#include "engine/base/error.h"
#include "engine/base/str.h"

namespace zinf::data {

PackedRows pack(std::vector<Piece> pieces, std::uint32_t capacity) {
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Piece& a, const Piece& b) { return a.length > b.length; });
  std::vector<std::uint32_t> row_of(pieces.size());
  std::vector<std::vector<std::uint32_t>> rows_with_room(capacity);  // by room left
  std::set<std::uint32_t> rooms;                                     // those with a row
  std::uint32_t rows = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::uint32_t length = pieces[i].length;
    ZINF_CHECK(length > 0 && length <= capacity,
               str("piece of ", length, " in rows of ", capacity));
    std::uint32_t room = capacity;
    if (const auto fit = rooms.lower_bound(length); fit != rooms.end()) {
      room = *fit;
      row_of[i] = rows_with_room[room].back();
      rows_with_room[room].pop_back();
      if (rows_with_room[room].empty()) rooms.erase(fit);
    } else {
      row_of[i] = rows++;
    }
    if (room == length) continue;
    rows_with_room[room - length].push_back(row_of[i]);
    rooms.insert(room - length);
  }
  PackedRows packed;
  packed.first.assign(rows + 1, 0);
  for (const std::uint32_t row : row_of) ++packed.first[row + 1];
  for (std::uint32_t row = 0; row < rows; ++row) packed.first[row + 1] += packed.first[row];
  packed.items.resize(pieces.size());
  std::vector<std::uint32_t> next(packed.first.begin(), packed.first.end() - 1);
  for (std::size_t i = 0; i < pieces.size(); ++i) packed.items[next[row_of[i]]++] = pieces[i].item;
  for (std::uint32_t row = 0; row < rows; ++row) {
    std::sort(packed.items.begin() + packed.first[row],
              packed.items.begin() + packed.first[row + 1]);
  }
  return packed;
}

}  // namespace zinf::data
