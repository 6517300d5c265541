// Strict reading of numbers, durations and words, and distances between words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace zinf::config {

// Decimal digits with a sign at most, or a number that is exactly integral and below 2^53 ("5e8",
// "3.0"). Refused: "010", "1.5", "1e-3", "0x10", "1_000".
std::optional<std::int64_t> parse_integer(std::string_view text);
// "0.1", "1e-5", "3"; not "inf", "nan", "0x1p3", ".5.".
std::optional<double> parse_number(std::string_view text);
// true/false, yes/no, on/off in lower, upper or title case.
std::optional<bool> parse_bool(std::string_view text);
// Seconds: "10m", "1.5h", "25s", "500ms", "2d"; a bare number is seconds.
std::optional<double> parse_duration(std::string_view text);
// As parse_bytes of engine/base, and numbers that parse_integer takes; no leading zeros.
std::optional<std::uint64_t> parse_size(std::string_view text);

std::string number_text(double value);  // shortest text that reads back to the same double
std::string duration_text(double seconds);
std::string size_text(std::uint64_t bytes);  // "4GiB" if exact in a binary unit, else bytes

// Edits (insert, delete, replace, swap of neighbours) that turn a into b.
int edit_distance(std::string_view a, std::string_view b);
std::string lower(std::string_view text);
// For messages: control characters escaped, cut after 80 bytes.
std::string clipped(std::string_view text);
// A scalar that YAML reads back as this text: as it is where that is safe, else in double quotes.
std::string yaml_text(const std::string& text);

}  // namespace zinf::config
