#include "engine/config/options.h"

#include <algorithm>
#include <map>
#include <set>

#include "engine/base/str.h"
#include "engine/config/option_rows.h"
#include "engine/config/text.h"

namespace zinf::config {

namespace {

struct Table {
  std::vector<Option> rows;
  std::map<std::string, const Option*> by_path;  // keys and aliases
  std::set<std::string> sections;
};

Table build() {
  Table table;
  for (auto part : {own_options(), training_options(), deepspeed_options()})
    for (Option& option : part) table.rows.push_back(std::move(option));
  for (Option& option : table.rows) {
    if (option.default_text.empty() && option.get)
      option.default_text = value_text(option, option.get(RunConfig{}));
    table.by_path[option.key] = &option;
    for (const std::string& alias : option.aliases) table.by_path[alias] = &option;
  }
  for (const auto& [path, option] : table.by_path)
    for (std::size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1))
      table.sections.insert(path.substr(0, dot));
  return table;
}

const Table& table() {
  static const Table built = build();
  return built;
}

// Names that other tools use for things that are not one key here.
const std::map<std::string, std::string>& foreign_names() {
  static const std::map<std::string, std::string> names = {
      {"datasets", "data.train"},
      {"dataset", "data.train"},
      {"train_file", "data.train"},
      {"validation_file", "data.eval"},
      {"gradient_accumulation", "gradient_accumulation_steps"},
      {"batch_size", "train_batch_size"},
      {"clip_grad", "gradient_clipping"},
      {"lr", "optimizer.params.lr"},
      {"zero_stage", "zero_optimization.stage"},
      {"logging_dir", "output_dir"},
      {"max_length", "data.seq_len"}};
  return names;
}

std::string parent(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

std::string last(const std::string& path) { return path.substr(path.rfind('.') + 1); }

int allowed_distance(const std::string& name) {
  return std::max<int>(1, static_cast<int>(name.size()) / 3);
}

// Keys and sections whose parent is `section`.
std::vector<std::string> children(const std::string& section) {
  std::vector<std::string> out;
  for (const auto& [path, option] : table().by_path)
    if (parent(path) == section) out.push_back(path);
  for (const std::string& path : table().sections)
    if (parent(path) == section) out.push_back(path);
  return out;
}

template <typename Paths>
std::string closest(const std::string& name, const Paths& paths, int bound) {
  std::string best;
  for (const std::string& path : paths) {
    const int distance = edit_distance(lower(name), lower(last(path)));
    if (distance > bound || (distance == bound && !best.empty())) continue;
    best = path;
    bound = distance;
  }
  return best;
}

std::string bounds_text(const Option& option) {
  const Range& range = option.range;
  const auto text = [&](double bound) {
    return option.kind == Kind::kSize       ? size_text(static_cast<Bytes>(bound))
           : option.kind == Kind::kDuration ? duration_text(bound)
                                            : number_text(bound);
  };
  if (range.least && range.most && !range.above_least && !range.below_most)
    return str(" from ", text(*range.least), " to ", text(*range.most));
  std::string out;
  if (range.least) out += str(range.above_least ? " above " : " of at least ", text(*range.least));
  if (range.most)
    out += str(out.empty() ? "" : " and", range.below_most ? " below " : " of at most ",
               text(*range.most));
  return out;
}

struct TextOf {
  const Option& option;

  std::string operator()(const AutoValue&) const { return option.unset_word; }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const {
    return option.kind == Kind::kDuration ? duration_text(value) : number_text(value);
  }
  std::string operator()(Bytes value) const { return size_text(value); }
  std::string operator()(const std::string& value) const { return yaml_text(value); }
  std::string operator()(const ChoiceValue& value) const {
    return option.choices.at(static_cast<std::size_t>(value.index));
  }
  std::string operator()(const Cadence& value) const {
    return value.steps ? std::to_string(*value.steps) : duration_text(*value.seconds);
  }
  std::string operator()(const std::vector<std::string>& value) const {
    std::string out;
    for (const std::string& item : value) out += str(out.empty() ? "" : ", ", yaml_text(item));
    return "[" + out + "]";
  }
  std::string operator()(const std::array<double, 2>& value) const {
    return str("[", number_text(value[0]), ", ", number_text(value[1]), "]");
  }
  std::string operator()(const std::vector<NvmeDrive>& value) const {
    std::string out;
    for (const NvmeDrive& drive : value) {
      out += str(out.empty() ? "" : ", ", "{path: ", yaml_text(drive.path));
      if (drive.capacity) out += str(", capacity: ", size_text(*drive.capacity));
      if (drive.endurance) out += str(", endurance: ", size_text(*drive.endurance));
      out += "}";
    }
    return "[" + out + "]";
  }
};

std::string kind_text(const Option& option) {
  switch (option.kind) {
    case Kind::kBool:
      return "true or false";
    case Kind::kInteger:
      return "an integer";
    case Kind::kNumber:
      return "a number";
    case Kind::kSize:
      return "a size such as 4GiB";
    case Kind::kDuration:
      return "a duration such as 10m";
    case Kind::kCadence:
      return "a number of steps or a duration such as 10m";
    case Kind::kText:
      return "a text";
    case Kind::kPath:
      return "a path";
    case Kind::kModelPath:
      return "a folder or a Hub id";
    case Kind::kTexts:
      return "a text or a list of texts";
    case Kind::kPaths:
      return "a path or a list of paths";
    case Kind::kPair:
      return "a list of two numbers";
    case Kind::kDrives:
      return "a list of {path, capacity, endurance}";
    case Kind::kAny:
      return "anything";
    case Kind::kChoice:
      break;
  }
  std::string out;
  for (std::size_t i = 0; i < option.choices.size(); ++i)
    out += str(i == 0 ? "" : i + 1 == option.choices.size() ? " or " : ", ", option.choices[i]);
  return out;
}

}  // namespace

const std::vector<Option>& options() { return table().rows; }

const Option* find_option(const std::string& key) {
  const auto found = table().by_path.find(key);
  return found == table().by_path.end() ? nullptr : found->second;
}

bool is_section(const std::string& path) { return table().sections.count(path) > 0; }

Nearest nearest_key(const std::string& unknown) {
  const std::string name = last(unknown);
  const int bound = allowed_distance(name);
  if (const std::string sibling = closest(name, children(parent(unknown)), bound); !sibling.empty())
    return {sibling, false};
  if (const auto foreign = foreign_names().find(name); foreign != foreign_names().end())
    return {foreign->second, true};
  for (const Option& option : table().rows)
    if (last(option.key) == name) return {option.key, true};
  for (const auto& [path, option] : table().by_path)
    if (last(path) == name) return {option->key, true};
  std::vector<std::string> all;
  for (const Option& option : table().rows) all.push_back(option.key);
  return {closest(name, all, std::min(bound, 2)), false};
}

std::string expected_text(const Option& option) {
  std::string out = kind_text(option) + bounds_text(option);
  if (option.may_be_unset && option.unset_word != "auto") out += str(", or ", option.unset_word);
  return out;
}

std::string value_text(const Option& option, const Value& value) {
  return std::visit(TextOf{option}, value);
}

}  // namespace zinf::config
