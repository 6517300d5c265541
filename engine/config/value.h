// A node of the tree as a typed value of an option.
#pragma once

#include <filesystem>
#include <string>
#include <variant>

#include "engine/config/node.h"
#include "engine/config/options.h"

namespace zinf::config {

// What is wrong with a value: "expected ..., found ...", and the line it stands in.
struct BadValue {
  std::string text;
  int line = 0;
};

// Relative paths are taken from `base`, which is absolute.
std::variant<Value, BadValue> parse_value(const Option& option, const Node& node,
                                          const std::filesystem::path& base);

// "~/x" is in the home folder; the result is absolute and has no "." or "..".
std::string absolute_path(const std::string& text, const std::filesystem::path& base);

}  // namespace zinf::config
