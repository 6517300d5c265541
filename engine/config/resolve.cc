#include "engine/config/resolve.h"

#include <algorithm>
#include <set>

#include "engine/base/str.h"
#include "engine/config/text.h"
#include "engine/config/value.h"

namespace zinf::config {

namespace {

using Settings = std::vector<Setting>;

// `placement: auto` takes back every pin of a lower level, and offload keys of its own level.
void take_back_pins(Settings& settings, std::vector<Note>& notes) {
  const Setting* all = nullptr;
  for (const Setting& setting : settings)
    if (setting.option->key == "placement" && setting.is_auto() &&
        (!all || setting.level > all->level))
      all = &setting;
  if (!all) return;
  const Setting winner = *all;
  const auto taken_back = [&](const Setting& setting) {
    if (!setting.option->key.starts_with("placement.")) return false;
    const bool offload = setting.path != setting.option->key;
    if (setting.level > winner.level || (setting.level == winner.level && !offload)) return false;
    notes.push_back(
        {Note::Kind::kChosen, str(setting.path, " (", setting.where,
                                  ") is taken back by placement: auto (", winner.where, ")")});
    return true;
  };
  settings.erase(std::remove_if(settings.begin(), settings.end(), taken_back), settings.end());
}

bool says_nothing(const Setting& setting) {
  const Node& value = setting.value;
  if (value.is_list()) return value.items.empty();
  return setting.is_auto() ||
         (value.is_scalar() && parse_number(value.text) == std::optional<double>(0));
}

// Two keys that say the same thing: the one of the higher level wins, equals contradict.
void exclude(Settings& settings, const std::string& a, const std::string& b, Problems& problems) {
  const auto highest = [&](const std::string& key) {
    const Setting* best = nullptr;
    for (const Setting& setting : settings)
      if (setting.option->key == key && !says_nothing(setting) &&
          (!best || setting.level > best->level))
        best = &setting;
    return best;
  };
  const Setting* first = highest(a);
  const Setting* second = highest(b);
  if (!first || !second) return;
  if (first->level == second->level) {
    problems.add(second->where,
                 str(second->path, " (", clipped(second->written), ") contradicts ", first->path,
                     " (", clipped(first->written), ") at ", first->where),
                 "give one of the two");
    return;
  }
  const std::string loser = first->level < second->level ? a : b;
  settings.erase(
      std::remove_if(settings.begin(), settings.end(),
                     [&](const Setting& setting) { return setting.option->key == loser; }),
      settings.end());
}

class Resolver {
 public:
  Resolver(Collected& collected, RunConfig& config) : collected_(collected), config_(config) {}

  Chosen run() {
    std::vector<const Option*> order;
    std::map<const Option*, Settings> groups;
    for (Setting& setting : collected_.settings) {
      Settings& group = groups[setting.option];
      if (group.empty()) order.push_back(setting.option);
      group.push_back(std::move(setting));
    }
    for (const Option* option : order) take(*option, groups[option]);
    add_no_effect_notes();
    return std::move(chosen_);
  }

 private:
  void take(const Option& option, Settings& group) {
    int level = 0;
    for (const Setting& setting : group) level = std::max(level, setting.level);
    const Setting* winner = nullptr;
    Value value;
    for (const Setting& setting : group) {
      // Every value is checked, also one that loses: a typing error should not wait for another
      // day.
      auto parsed = parse_value(option, setting.value, setting.base);
      if (BadValue* bad = std::get_if<BadValue>(&parsed)) {
        report(setting, *bad);
        continue;
      }
      if (setting.level < level) continue;
      if (!winner || (winner->is_auto() && !setting.is_auto())) {
        winner = &setting;
        value = std::get<Value>(parsed);
      } else if (!setting.is_auto() && option.kind != Kind::kAny &&
                 !(std::get<Value>(parsed) == value)) {
        contradict(*winner, setting);
      }
    }
    if (winner) apply(option, *winner, value);
  }

  void report(const Setting& setting, const BadValue& bad) {
    std::string where = setting.where;
    const std::size_t colon = where.rfind(':');
    const bool file = colon != std::string::npos && !where.starts_with("--set");
    if (file && bad.line > 0) where = str(where.substr(0, colon), ":", bad.line);
    collected_.problems.add(where, str(setting.path, ": ", bad.text));
  }

  void contradict(const Setting& first, const Setting& second) {
    collected_.problems.add(second.where,
                            str(second.path, ": ", clipped(second.written), " contradicts ",
                                first.path, ": ", clipped(first.written), " at ", first.where),
                            "keep one of the two");
  }

  void apply(const Option& option, const Setting& winner, const Value& value) {
    if (option.effect == Effect::kRefused && !harmless(option, winner.value, value)) {
      collected_.problems.add(winner.where, str(winner.path, ": ", clipped(winner.written),
                                                " is refused: ", option.reason));
      return;
    }
    if (option.effect == Effect::kNone) no_effect_[option.reason].push_back(winner.path);
    if (option.effect != Effect::kUsed) return;
    if (option.set) option.set(config_, value);
    config_.origins.by_key[option.key] =
        winner.is_auto() ? str("auto, ", winner.origin()) : winner.origin();
    if (winner.path != option.key)
      collected_.notes.push_back(
          {Note::Kind::kReadAs, str(winner.path, ": ", clipped(winner.written), " (", winner.where,
                                    ") read as ", option.key, ": ", value_text(option, value))});
    chosen_.emplace(option.key, winner);
  }

  // A whole section is harmless when it is empty or every `enabled` in it is false.
  static bool switched_off(const Node& node) {
    bool found = false;
    bool off = true;
    const auto look = [&](const auto& self, const Node& at) -> void {
      for (const Node::Entry& entry : at.entries) {
        if (entry.key == "enabled" && entry.value.is_scalar()) {
          found = true;
          off = off && parse_bool(entry.value.text) == std::optional<bool>(false);
        }
        self(self, entry.value);
      }
      for (const Node& item : at.items) self(self, item);
    };
    look(look, node);
    return found ? off : node.entries.empty() && node.items.empty() && !node.is_scalar();
  }

  static bool harmless(const Option& option, const Node& node, const Value& value) {
    if (option.kind == Kind::kAny)
      return switched_off(node) ||
             (node.is_scalar() && parse_bool(node.text) == std::optional<bool>(false));
    if (node.is_scalar() && node.text == "auto") return true;
    for (const std::string& word : option.harmless) {
      Node allowed;
      allowed.type = Node::Type::kScalar;
      allowed.text = word;
      const auto parsed = parse_value(option, allowed, "/");
      if (std::holds_alternative<Value>(parsed) && std::get<Value>(parsed) == value) return true;
    }
    return false;
  }

  // "a.{b, c}, d"
  static std::string grouped(const std::vector<std::string>& keys) {
    std::vector<std::pair<std::string, std::vector<std::string>>> sections;
    for (const std::string& key : keys) {
      const std::size_t dot = key.rfind('.');
      const std::string section = dot == std::string::npos ? "" : key.substr(0, dot + 1);
      auto at = std::find_if(sections.begin(), sections.end(),
                             [&](const auto& known) { return known.first == section; });
      if (at == sections.end()) at = sections.insert(at, {section, {}});
      at->second.push_back(key.substr(section.size()));
    }
    std::string out;
    for (const auto& [section, names] : sections) {
      std::string list;
      for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
      const bool braces = !section.empty() && names.size() > 1;
      out += str(out.empty() ? "" : ", ", section, braces ? "{" : "", list, braces ? "}" : "");
    }
    return out;
  }

  void add_no_effect_notes() {
    std::set<std::string> said;
    for (const Option& option : options()) {
      const auto found = no_effect_.find(option.reason);
      if (found == no_effect_.end() || !said.insert(option.reason).second) continue;
      collected_.notes.push_back(
          {Note::Kind::kNoEffect,
           str("no effect here: ", grouped(found->second), " (", option.reason, ")")});
    }
  }

  Collected& collected_;
  RunConfig& config_;
  Chosen chosen_;
  std::map<std::string, std::vector<std::string>> no_effect_;  // reason -> keys
};

}  // namespace

Chosen resolve(Collected& collected, RunConfig& config) {
  take_back_pins(collected.settings, collected.notes);
  exclude(collected.settings, "train.steps", "train.epochs", collected.problems);
  exclude(collected.settings, "data.eval", "data.eval_fraction", collected.problems);
  return Resolver(collected, config).run();
}

}  // namespace zinf::config
