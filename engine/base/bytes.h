// Byte counts: 64 bits everywhere, parsed from and printed as people write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace zinf {

using Bytes = std::uint64_t;

constexpr Bytes kKiB = Bytes{1} << 10;
constexpr Bytes kMiB = Bytes{1} << 20;
constexpr Bytes kGiB = Bytes{1} << 30;

// "4GiB", "1.5TB", "512": digits with at most one point, then B, kB, MB, GB, TB, KiB, MiB, GiB, TiB
// or nothing; blanks before the unit are allowed. nullopt: not a size, negative, or above 2^63.
std::optional<Bytes> parse_bytes(std::string_view text);

// "1.50 GiB", "640 B": binary units, three digits.
std::string format_bytes(Bytes bytes);

constexpr Bytes round_up(Bytes value, Bytes multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace zinf
