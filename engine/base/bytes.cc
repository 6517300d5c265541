#include "engine/base/bytes.h"

#include <array>
#include <cmath>
#include <cstdio>

namespace zinf {

namespace {
struct Unit {
  const char* name;
  double factor;
};
constexpr std::array<Unit, 14> kUnits = {{{"", 1.0},
                                          {"B", 1.0},
                                          {"kB", 1e3},
                                          {"KB", 1e3},
                                          {"MB", 1e6},
                                          {"GB", 1e9},
                                          {"TB", 1e12},
                                          {"KiB", 1024.0},
                                          {"MiB", 1048576.0},
                                          {"GiB", 1073741824.0},
                                          {"TiB", 1099511627776.0},
                                          {"PB", 1e15},
                                          {"PiB", 1125899906842624.0},
                                          {"b", -1.0}}};
}  // namespace

std::optional<Bytes> parse_bytes(std::string_view text) {
  std::size_t end = 0;
  int points = 0;
  while (end < text.size() && ((text[end] >= '0' && text[end] <= '9') || text[end] == '.')) {
    points += text[end] == '.';
    ++end;
  }
  constexpr std::size_t kLongest = 64;  // characters; stold throws at thousands
  if (end == 0 || end > kLongest || points > 1 || text[0] == '.' || text[end - 1] == '.')
    return std::nullopt;
  const std::string digits(text.substr(0, end));
  std::string_view unit = text.substr(end);
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  for (const Unit& candidate : kUnits) {
    if (unit != candidate.name || candidate.factor < 0) continue;
    const long double value = std::stold(digits) * static_cast<long double>(candidate.factor);
    if (value > 9.2e18L) return std::nullopt;
    return static_cast<Bytes>(std::llroundl(value));
  }
  return std::nullopt;
}

std::string format_bytes(Bytes bytes) {
  const char* names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1000.0 && unit < 5) {
    value /= 1024.0;
    ++unit;
  }
  char text[48];
  if (unit == 0) {
    std::snprintf(text, sizeof text, "%llu B", static_cast<unsigned long long>(bytes));
  } else {
    std::snprintf(text, sizeof text,
                  value < 10    ? "%.2f %s"
                  : value < 100 ? "%.1f %s"
                                : "%.0f %s",
                  value, names[unit]);
  }
  return text;
}

}  // namespace zinf
