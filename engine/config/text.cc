#include "engine/config/text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <vector>

#include "engine/base/bytes.h"

namespace zinf::config {

namespace {

bool digit(char c) { return c >= '0' && c <= '9'; }

// sign? digits ('.' digits)? ([eE] sign? digits)?, no leading zero before another digit.
bool plain_decimal(std::string_view text) {
  std::size_t i = 0;
  const auto digits = [&] {
    const std::size_t begin = i;
    while (i < text.size() && digit(text[i])) ++i;
    return i - begin;
  };
  if (i < text.size() && (text[i] == '-' || text[i] == '+')) ++i;
  const std::size_t begin = i;
  const std::size_t whole = digits();
  if (whole > 1 && text[begin] == '0') return false;
  std::size_t fraction = 0;
  if (i < text.size() && text[i] == '.') {
    ++i;
    fraction = digits();
  }
  if (whole + fraction == 0) return false;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '-' || text[i] == '+')) ++i;
    if (digits() == 0) return false;
  }
  return i == text.size();
}

}  // namespace

std::optional<double> parse_number(std::string_view text) {
  if (!plain_decimal(text)) return std::nullopt;
  if (text.front() == '+') text.remove_prefix(1);
  double value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code == std::errc::result_out_of_range || end != text.data() + text.size())
    return std::nullopt;
  return value;
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  if (!plain_decimal(text)) return std::nullopt;
  if (text.front() == '+') text.remove_prefix(1);
  std::int64_t exact = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), exact);
  if (code == std::errc() && end == text.data() + text.size()) return exact;
  const std::optional<double> value = parse_number(text);
  if (!value || *value != std::floor(*value) || std::fabs(*value) > 0x1p53) return std::nullopt;
  // 1.5 and 1e-3 are out by now; so is a fraction that only rounding makes integral
  // ("1.00000000000000000001").
  const std::size_t point = text.find('.');
  if (point != std::string_view::npos && text.find_first_of("eE") == std::string_view::npos &&
      text.find_first_not_of('0', point + 1) != std::string_view::npos)
    return std::nullopt;
  return static_cast<std::int64_t>(*value);
}

std::optional<bool> parse_bool(std::string_view text) {
  if (text.empty()) return std::nullopt;
  const std::string word = lower(text);
  const bool one_case = text == word || text == [&] {
    std::string upper(text);
    for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return upper;
  }() || std::string_view(text).substr(1) == std::string_view(word).substr(1);
  if (!one_case) return std::nullopt;
  if (word == "true" || word == "yes" || word == "on") return true;
  if (word == "false" || word == "no" || word == "off") return false;
  return std::nullopt;
}

std::optional<double> parse_duration(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, double>, 11> kUnits = {{{"", 1},
                                                                                  {"ms", 1e-3},
                                                                                  {"s", 1},
                                                                                  {"sec", 1},
                                                                                  {"m", 60},
                                                                                  {"min", 60},
                                                                                  {"h", 3600},
                                                                                  {"d", 86400},
                                                                                  {"seconds", 1},
                                                                                  {"minutes", 60},
                                                                                  {"hours", 3600}}};
  std::size_t end = 0;
  while (end < text.size() && (digit(text[end]) || text[end] == '.')) ++end;
  const std::optional<double> value = parse_number(text.substr(0, end));
  if (!value) return std::nullopt;
  text.remove_prefix(end);
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  for (const auto& [name, factor] : kUnits)
    if (text == name) return *value * factor;
  return std::nullopt;
}

std::optional<std::uint64_t> parse_size(std::string_view text) {
  if (text.size() > 1 && text[0] == '0' && digit(text[1])) return std::nullopt;
  if (const std::optional<std::int64_t> whole = parse_integer(text))
    return *whole < 0 ? std::nullopt
                      : std::optional<std::uint64_t>(static_cast<std::uint64_t>(*whole));
  if (text.find_first_not_of("0123456789.") == std::string_view::npos)
    return std::nullopt;  // "1.5" bytes
  if (text.size() > 40) return std::nullopt;
  return parse_bytes(text);
}

std::string number_text(double value) {
  std::array<char, 40> buffer{};
  const auto [end, code] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  std::string out(buffer.data(), end);
  const std::size_t exponent = out.find('e');
  if (exponent != std::string::npos && exponent + 3 < out.size() && out[exponent + 2] == '0')
    out.erase(exponent + 2, 1);
  return out;
}

std::string duration_text(double seconds) {
  static constexpr std::array<std::pair<const char*, double>, 3> kUnits = {
      {{"d", 86400}, {"h", 3600}, {"m", 60}}};
  for (const auto& [name, factor] : kUnits) {
    const double count = seconds / factor;
    if (seconds >= factor && count == std::floor(count)) return number_text(count) + name;
  }
  // Fixed notation: the reader of durations takes no exponent.
  std::array<char, 512> buffer{};
  const auto [end, code] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), seconds,
                                         std::chars_format::fixed);
  return std::string(buffer.data(), end) + "s";
}

std::string size_text(std::uint64_t bytes) {
  static constexpr std::array<const char*, 4> kNames = {"TiB", "GiB", "MiB", "KiB"};
  for (int i = 0; i < 4; ++i) {
    const std::uint64_t unit = std::uint64_t{1} << (40 - 10 * i);
    if (bytes >= unit && bytes % unit == 0)
      return std::to_string(bytes / unit) + kNames[static_cast<std::size_t>(i)];
  }
  return std::to_string(bytes);
}

int edit_distance(std::string_view a, std::string_view b) {
  if (a.size() > 200 || b.size() > 200) return 200;
  std::vector<std::vector<int>> cost(a.size() + 1, std::vector<int>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = static_cast<int>(i + j);
        continue;
      }
      const int change = a[i - 1] == b[j - 1] ? 0 : 1;
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string clipped(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 80)) {
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7F) {
      out += c;
      continue;
    }
    std::array<char, 8> escape{};
    std::snprintf(escape.data(), escape.size(), c == '\n' ? "\\n" : "\\x%02x",
                  static_cast<unsigned char>(c));
    out += escape.data();
  }
  return text.size() > 80 ? out + "..." : out;
}

std::string yaml_text(const std::string& text) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '/' || c == '_' || c == '.' ||
           c == '-' || c == '+';
  };
  const std::string word = lower(text);
  const bool special = word == "null" || word == "auto" || word == "config" || parse_bool(text) ||
                       parse_number(text);
  if (!text.empty() &&
      std::isalpha(static_cast<unsigned char>(text[0] == '/' ? 'a' : text[0])) != 0 && !special &&
      std::all_of(text.begin(), text.end(), plain))
    return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7F) {
      out += c;
      continue;
    }
    std::array<char, 8> escape{};
    std::snprintf(escape.data(), escape.size(), "\\x%02X", static_cast<unsigned char>(c));
    out += escape.data();
  }
  return out + "\"";
}

}  // namespace zinf::config
