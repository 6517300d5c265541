// Whose an area is: a block of 4,096 bytes behind the header of each of its files. An area may be
// used by whoever knows its mark, so that of two owners who both claim it the later one can tell.
//
//   0  "ZINFMARK"    8  u64 owner, two words    24  u32 bytes of the note    28  the note, UTF-8
//   4088  u64 xxh3 of bytes 0..4087
//
// Written at once; what a power loss leaves of it is the old block, the new one, or none.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace zinf::nvme {

using AreaOwner = std::array<std::uint64_t, 2>;

struct AreaMark {
  AreaOwner owner{};
  std::string note;  // for people and for the owner; cut when it is too long
};

// A file that is missing, can't be read or was never marked has none.
std::optional<AreaMark> read_area_mark(const std::string& path);
// Durable when it returns. Throws Error.
void write_area_mark(const std::string& path, const AreaMark& mark);

}  // namespace zinf::nvme
