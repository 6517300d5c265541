// The one option table. Parsing, --help, the reference page and "did you mean" are all made from
// it, so a key exists everywhere or nowhere.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/config/run_config.h"

namespace zinf::config {

enum class Kind {
  kBool,
  kInteger,
  kNumber,
  kSize,
  kDuration,
  kCadence,  // steps or a duration
  kText,
  kPath,       // made absolute against the file it stands in
  kModelPath,  // as kPath if such a file or folder exists or the text starts with . / ~; else kept
               // as a Hub id
  kChoice,
  kTexts,  // list of texts; a single text is a list of one
  kPaths,
  kPair,    // two numbers
  kDrives,  // memory.nvme
  kAny,     // not looked at
};

struct AutoValue {
  bool operator==(const AutoValue&) const = default;
};
struct ChoiceValue {
  int index = 0;
  bool operator==(const ChoiceValue&) const = default;
};
using Value =
    std::variant<AutoValue, bool, std::int64_t, double, Bytes, std::string, ChoiceValue, Cadence,
                 std::vector<std::string>, std::array<double, 2>, std::vector<NvmeDrive>>;

enum class Effect {
  kUsed,
  kNone,     // accepted, checked, and named once as having no effect here
  kRefused,  // accepted only with one of `harmless`, which then has no effect
};

struct Range {
  std::optional<double> least;
  std::optional<double> most;
  bool above_least = false;  // least itself is not allowed
  bool below_most = false;
};

struct Option {
  std::string key;  // "optimizer.params.lr"
  Kind kind = Kind::kText;
  Range range;
  std::vector<std::string> choices;                           // kChoice, in the order of the enum
  std::vector<std::pair<std::string, std::string>> synonyms;  // kChoice: other spelling, choice
  std::string default_text;  // as people read it: "auto", "25s", "none"
  std::string auto_text;  // what "auto" stands for when it is not the default; empty: the default
  bool may_be_unset = false;        // AutoValue is a value of its own
  std::string unset_word = "auto";  // how AutoValue is written
  std::string unit;                 // "steps", "bytes", "seconds", ...
  std::string help;
  std::vector<std::string> aliases;  // full paths in other tools' configs
  Effect effect = Effect::kUsed;
  std::string reason;                 // kNone: why; kRefused: what to do instead
  std::vector<std::string> harmless;  // kRefused
  // Both empty when effect is not kUsed, or when load() treats the key itself.
  std::function<Value(const RunConfig&)> get;
  std::function<void(RunConfig&, const Value&)> set;
};

// In the order of the reference page. Built once; thread-safe.
const std::vector<Option>& options();

// The option of a full key path, or of an alias of it; nullptr: there is none.
const Option* find_option(const std::string& key);
// A path under which options or aliases lie ("optimizer", "zero_optimization.offload_param").
bool is_section(const std::string& path);

// The key most like `unknown` (a full path): a sibling with a similar name, else a key elsewhere
// with the same last part, else a similar one elsewhere. Empty: nothing is near.
struct Nearest {
  std::string key;
  bool elsewhere = false;  // right name, wrong section
};
Nearest nearest_key(const std::string& unknown);

// "an integer, at least 1, or auto"
std::string expected_text(const Option& option);
// The value as it is written in YAML.
std::string value_text(const Option& option, const Value& value);

}  // namespace zinf::config
