#include "engine/base/flat_yaml.h"

#include <sstream>

#include "engine/base/error.h"
#include "engine/base/str.h"

namespace zinf {

namespace {

constexpr std::size_t kCommentColumn = 48;

std::string trim(const std::string& line) {
  const auto from = line.find_first_not_of(" \t\r");
  return from == std::string::npos ? ""
                                   : line.substr(from, line.find_last_not_of(" \t\r") - from + 1);
}

// The value before a comment; a '#' within quotes is none.
std::string value_of(const std::string& rest) {
  bool quoted = false;
  for (std::size_t i = 0; i < rest.size(); ++i) {
    if (rest[i] == '"') quoted = !quoted;
    if (rest[i] == '#' && !quoted) return trim(rest.substr(0, i));
  }
  return trim(rest);
}

}  // namespace

std::map<std::string, FlatValue> parse_flat_yaml(const std::string& text, const std::string& name,
                                                 const std::string& hint) {
  std::map<std::string, FlatValue> values;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    line = trim(line);
    if (line.empty() || line[0] == '#') continue;
    const auto refuse = [&](const std::string& what) {
      throw Error(ErrorKind::kUsage, str(name, ":", number, ": ", what), hint);
    };
    const auto colon = line.find(':');
    if (colon == std::string::npos) refuse(str("expected \"key: value\", found \"", line, "\""));
    const std::string key = line.substr(0, colon);
    const auto [known, fresh] =
        values.try_emplace(key, FlatValue{value_of(line.substr(colon + 1)), number});
    if (!fresh) refuse(str("key ", key, " again, first in line ", known->second.line));
  }
  return values;
}

std::string flat_yaml_line(const std::string& key, const std::string& value,
                           const std::string& comment) {
  std::string line = key + ": " + value;
  if (line.size() < kCommentColumn) line.resize(kCommentColumn, ' ');
  return line + " # " + comment + "\n";
}

std::string quoted_text(const std::string& text) {
  std::string out = "\"";
  for (const char c : text)
    out += c == '"' || c == '\\' || static_cast<unsigned char>(c) < ' ' ? '?' : c;
  return out + "\"";
}

bool unquote_text(const std::string& quoted, std::string& text) {
  if (quoted.size() < 2 || quoted.front() != '"' || quoted.back() != '"') return false;
  text = quoted.substr(1, quoted.size() - 2);
  return true;
}

}  // namespace zinf
