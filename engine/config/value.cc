#include "engine/config/value.h"

#include <cstdlib>

#include "engine/base/str.h"
#include "engine/config/text.h"

namespace zinf::config {

namespace {

using Result = std::variant<Value, BadValue>;
using std::filesystem::path;

BadValue unexpected(const Option& option, const Node& node, const std::string& more = "") {
  return {str("expected ", expected_text(option), ", found ", shown(node), more), node.line};
}

bool in_range(const Range& range, double value) {
  if (range.least && (range.above_least ? value <= *range.least : value < *range.least))
    return false;
  return !range.most || (range.below_most ? value < *range.most : value <= *range.most);
}

Result integer(const Option& option, const Node& node) {
  const std::optional<std::int64_t> value = parse_integer(node.text);
  if (!value || !in_range(option.range, static_cast<double>(*value)))
    return unexpected(option, node);
  return Value(std::in_place_type<std::int64_t>, *value);
}

Result number(const Option& option, const Node& node, std::optional<double> value) {
  if (!value || !in_range(option.range, *value)) return unexpected(option, node);
  return Value(std::in_place_type<double>, *value);
}

Result size(const Option& option, const Node& node) {
  const std::optional<Bytes> value = parse_size(node.text);
  if (!value) return unexpected(option, node);
  if (in_range(option.range, static_cast<double>(*value)))
    return Value(std::in_place_type<Bytes>, *value);
  const bool bare = node.text.find_first_not_of("0123456789") == std::string::npos;
  return unexpected(option, node,
                    bare ? str(", which is in bytes: write ", node.text, "GiB or the like") : "");
}

Result cadence(const Option& option, const Node& node) {
  Cadence value;
  if ((value.steps = parse_integer(node.text))) {
    if (*value.steps >= 1) return Value(value);
  } else if (!parse_number(node.text) && (value.seconds = parse_duration(node.text)) &&
             *value.seconds > 0) {
    return Value(value);
  }
  return unexpected(option, node);
}

Result choice(const Option& option, const Node& node) {
  std::string word = lower(node.text);
  for (const auto& [other, meant] : option.synonyms)
    if (lower(other) == word) word = lower(meant);
  for (std::size_t i = 0; i < option.choices.size(); ++i)
    if (lower(option.choices[i]) == word) return Value(ChoiceValue{static_cast<int>(i)});
  std::string nearest;
  int best = 3;
  const auto look = [&](const std::string& name) {
    const int distance = edit_distance(word, lower(name));
    if (distance < best) nearest = name, best = distance;
  };
  for (const std::string& name : option.choices) look(name);
  for (const auto& [other, meant] : option.synonyms) look(other);
  return unexpected(option, node, nearest.empty() ? "" : str("; nearest: ", nearest));
}

Result texts(const Option& option, const Node& node, const path& base) {
  std::vector<std::string> out;
  const auto add = [&](const Node& item) {
    if (!item.is_scalar() || item.text.empty()) return false;
    out.push_back(option.kind == Kind::kPaths ? absolute_path(item.text, base) : item.text);
    return true;
  };
  if (node.is_scalar() && !add(node)) return unexpected(option, node);
  for (const Node& item : node.items)
    if (!add(item)) return unexpected(option, item);
  return Value(std::move(out));
}

Result pair(const Option& option, const Node& node) {
  std::array<double, 2> out{};
  if (node.items.size() != 2)
    return BadValue{
        str("expected ", expected_text(option), ", found ", node.items.size(), " values"),
        node.line};
  for (std::size_t i = 0; i < 2; ++i) {
    const Node& item = node.items[i];
    const std::optional<double> value = item.is_scalar() ? parse_number(item.text) : std::nullopt;
    if (!value || !in_range(option.range, *value)) return unexpected(option, item);
    out[i] = *value;
  }
  return Value(out);
}

std::optional<BadValue> drive_size(const Node::Entry& entry, std::optional<Bytes>& out) {
  std::string text = entry.value.text;
  if (entry.key == "endurance" && text.size() > 3 && text.ends_with("BW"))
    text.pop_back();  // 600TBW
  if (entry.value.is_null() || (entry.value.is_scalar() && text == "auto")) return std::nullopt;
  out = entry.value.is_scalar() ? parse_size(text) : std::nullopt;
  if (out && *out > 0) return std::nullopt;
  return BadValue{str(entry.key, ": expected a size such as 500GiB, found ", shown(entry.value)),
                  entry.value.line};
}

std::optional<BadValue> drive(const Node& node, const path& base, NvmeDrive& out) {
  if (node.is_scalar() && !node.text.empty()) {
    out.path = absolute_path(node.text, base);
    return std::nullopt;
  }
  if (!node.is_map())
    return BadValue{str("expected {path, capacity, endurance}, found ", shown(node)), node.line};
  for (const Node::Entry& entry : node.entries) {
    if (entry.key == "path") {
      if (!entry.value.is_scalar() || entry.value.text.empty())
        return BadValue{str("path: expected a path, found ", shown(entry.value)), entry.line};
      out.path = absolute_path(entry.value.text, base);
    } else if (entry.key == "capacity" || entry.key == "endurance") {
      if (auto bad = drive_size(entry, entry.key == "capacity" ? out.capacity : out.endurance))
        return bad;
    } else {
      std::string nearest = "path";
      for (const char* name : {"capacity", "endurance"})
        if (edit_distance(entry.key, name) < edit_distance(entry.key, nearest)) nearest = name;
      return BadValue{str("unknown key '", clipped(entry.key), "' (value ", shown(entry.value),
                          "); nearest key: ", nearest),
                      entry.line};
    }
  }
  if (out.path.empty()) return BadValue{"path is missing", node.line};
  return std::nullopt;
}

Result drives(const Node& node, const path& base) {
  std::vector<NvmeDrive> out;
  const std::vector<Node> single = {node};
  for (const Node& item : node.is_list() ? node.items : single) {
    NvmeDrive next;
    if (auto bad = drive(item, base, next)) return *bad;
    for (const NvmeDrive& other : out)
      if (other.path == next.path)
        return BadValue{str("path ", next.path, " is given twice"), item.line};
    out.push_back(std::move(next));
  }
  return Value(std::move(out));
}

// A Hub id stays as it is; what is a path, or exists, becomes absolute.
std::string model_path(const std::string& text, const path& base) {
  if (text.front() == '/' || text.front() == '.' || text.front() == '~')
    return absolute_path(text, base);
  const std::string full = absolute_path(text, base);
  std::error_code ignored;
  return std::filesystem::exists(full, ignored) ? full : text;
}

Result scalar(const Option& option, const Node& node, const path& base) {
  switch (option.kind) {
    case Kind::kBool:
      if (const std::optional<bool> value = parse_bool(node.text))
        return Value(std::in_place_type<bool>, *value);
      return unexpected(option, node);
    case Kind::kInteger:
      return integer(option, node);
    case Kind::kNumber:
      return number(option, node, parse_number(node.text));
    case Kind::kDuration:
      return number(option, node, parse_duration(node.text));
    case Kind::kSize:
      return size(option, node);
    case Kind::kCadence:
      return cadence(option, node);
    case Kind::kChoice:
      return choice(option, node);
    default:
      break;
  }
  if (node.text.empty() && option.kind != Kind::kText) return unexpected(option, node);
  if (option.kind == Kind::kPath) return Value(absolute_path(node.text, base));
  if (option.kind == Kind::kModelPath) return Value(model_path(node.text, base));
  return Value(node.text);
}

Value auto_value(const Option& option, const path& base) {
  if (!option.auto_text.empty()) {
    Node stated;
    stated.type = Node::Type::kScalar;
    stated.text = option.auto_text;
    return std::get<Value>(scalar(option, stated, base));
  }
  return option.get ? option.get(RunConfig{}) : Value(AutoValue{});
}

}  // namespace

std::string absolute_path(const std::string& text, const path& base) {
  path out = text;
  const char* home = std::getenv("HOME");
  if (home && (text == "~" || text.starts_with("~/")))
    out = path(home) / text.substr(text.size() > 1 ? 2 : 1);
  out = (base / out).lexically_normal();
  // "a/b/" and "a/b" are one folder.
  return out.has_filename() || !out.has_relative_path() ? out.string() : out.parent_path().string();
}

Result parse_value(const Option& option, const Node& node, const path& base) {
  if (option.kind == Kind::kAny) return Value(AutoValue{});
  if (node.is_scalar()) {
    const std::string word = lower(node.text);
    if (option.may_be_unset && word == option.unset_word) return Value(AutoValue{});
    if (word == "auto") return auto_value(option, base);
  }
  switch (option.kind) {
    case Kind::kTexts:
    case Kind::kPaths:
      if (node.is_map()) return unexpected(option, node);
      return texts(option, node, base);
    case Kind::kPair:
      if (!node.is_list()) return unexpected(option, node);
      return pair(option, node);
    case Kind::kDrives:
      return drives(node, base);
    default:
      break;
  }
  if (!node.is_scalar()) return unexpected(option, node);
  return scalar(option, node, base);
}

}  // namespace zinf::config
