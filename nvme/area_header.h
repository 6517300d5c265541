// The first 4,096 bytes of a swap area's file. Little-endian, all else zero:
//
//   0  "ZINFAREA"            8  u32 version (1)         12  u32 index of this drive    16  u32
//   number of drives
//  24  u64 stripe unit      32  u64 logical bytes       40  u64 area id, two words (equal on all
//  drives of an area) 56  u32 stripe count per drive, at most 64          4088  u64 xxh3 of bytes
//  0..4087
//
// Data start at kAreaDataStart. The extents are not listed: whoever made them makes them again in
// the same order.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/bytes.h"
#include "nvme/swap_file.h"

namespace zinf::nvme {

constexpr Bytes kAreaDataStart = kMiB;  // keeps the blocks aligned to what RAID and flash like
constexpr std::size_t kMostDrives = 64;

struct AreaHeader {
  std::uint32_t drive = 0;
  Bytes stripe_unit = 0;
  Bytes logical_bytes = 0;
  std::array<std::uint64_t, 2> area_id{};
  std::vector<std::uint32_t> stripe_counts;  // one per drive
};

// Writes and makes durable. Throws Error.
void write_area_header(const SwapFile& file, const AreaHeader& header);
// Throws Error(kFailed) naming the file: no area, another version, damaged.
AreaHeader read_area_header(const SwapFile& file);
// A fresh area id.
std::array<std::uint64_t, 2> make_area_id();

}  // namespace zinf::nvme
