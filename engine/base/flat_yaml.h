// Flat YAML ("key: value # comment" lines, values in quotes where they are texts), as the profiles
// that zinf writes for itself. Keys in files of users are read by engine/config.
#pragma once

#include <charconv>
#include <map>
#include <string>

namespace zinf {

struct FlatValue {
  std::string text;  // without comment and outer blanks; quotes are kept
  int line = 0;
};

// By key. Throws Error(kUsage) "NAME:LINE: ..." with the hint for a line that is no "key: value"
// and for a key that comes twice.
std::map<std::string, FlatValue> parse_flat_yaml(const std::string& text, const std::string& name,
                                                 const std::string& hint);

// One line, comments aligned.
std::string flat_yaml_line(const std::string& key, const std::string& value,
                           const std::string& comment);

// A text in quotes, with what would need escapes replaced by '?'; and back, false when it is none.
std::string quoted_text(const std::string& text);
bool unquote_text(const std::string& quoted, std::string& text);
// Whether the whole text is a number of at least 0; then its value.
template <typename T>
bool parse_flat_number(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0;
}

}  // namespace zinf
