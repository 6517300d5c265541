#include "engine/config/collect.h"

#include <algorithm>
#include <tuple>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/config/text.h"

namespace zinf::config {

namespace {

std::string join(const std::string& prefix, const std::string& key) {
  return prefix.empty() ? key : prefix + "." + key;
}

Node word(const Node& like, const std::string& text) {
  Node out = like;
  out.type = Node::Type::kScalar;
  out.text = text;
  return out;
}

// Sections for which one word is enough: `optimizer: AdamW`, `bf16: true`.
std::string main_key(const std::string& section) {
  if (section == "optimizer" || section == "scheduler") return section + ".type";
  if (section == "bf16" || section == "fp16") return section + ".enabled";
  return "";
}

class Walker {
 public:
  Walker(const Source& source, Collected& out) : source_(source), out_(out) {}

  void section(const std::string& prefix, const Node& map) {
    for (const Node::Entry& entry : map.entries) visit(join(prefix, entry.key), entry);
  }

  void visit(const std::string& path, const Node::Entry& entry) {
    const Option* option = find_option(path);
    const bool section_here = is_section(path);
    if (section_here && entry.value.is_map()) {
      section(path, entry.value);
    } else if (section_here && entry.value.is_null()) {
      // an empty section says nothing
    } else if (path == "deepspeed" && entry.value.is_map()) {
      section("", entry.value);
    } else if (option) {
      leaf(*option, path, entry);
    } else if (const std::string key = main_key(path); !key.empty() && entry.value.is_scalar()) {
      leaf(*find_option(key), key, entry);
    } else if (section_here) {
      not_a_section(path, entry);
    } else {
      unknown(path, entry);
    }
  }

 private:
  std::string where(int line) const {
    return source_.is_file ? str(source_.name, ":", line) : source_.name;
  }

  void leaf(const Option& option, const std::string& path, const Node::Entry& entry) {
    if (entry.value.is_null()) return;  // "key:" and JSON's null: as if absent
    Setting setting;
    setting.option = &option;
    setting.path = path;
    setting.value = entry.value;
    setting.written = entry.value.is_scalar() ? entry.value.text : shown(entry.value);
    setting.where = where(entry.line);
    setting.base = source_.base;
    setting.level = source_.level;
    if (path != option.key && !translate(setting)) return;
    out_.settings.push_back(std::move(setting));
  }

  // From the alias's way of saying it to the option's. False: it says nothing.
  bool translate(Setting& setting) {
    Node& value = setting.value;
    if (!value.is_scalar()) return true;
    const std::string& path = setting.path;
    if (path.starts_with("zero_optimization.offload_") && value.text == "none")
      value = word(value, "device");
    const bool yes_means_host = path.starts_with("zero_optimization.cpu_offload") ||
                                path == "activation_checkpointing.cpu_checkpointing";
    if (yes_means_host) {
      const std::optional<bool> on = parse_bool(value.text);
      if (!on && value.text != "auto") {
        out_.problems.add(setting.where,
                          str(path, ": expected true or false, found ", shown(value)));
        return false;
      }
      if (!on.value_or(false)) return false;
      value = word(value, "host");
    }
    if (path == "max_steps" && value.text == "-1") return false;  // Hugging Face's "not given"
    return true;
  }

  void unknown(const std::string& path, const Node::Entry& entry) {
    const Nearest nearest = nearest_key(path);
    const std::string what =
        str("unknown key '", clipped(path), "' (value ", shown(entry.value), ")");
    if (nearest.key.empty()) {
      out_.problems.add(where(entry.line), what, "docs/config.md lists every key");
    } else if (nearest.elsewhere) {
      out_.problems.add(where(entry.line), str(what, "; it belongs in ", nearest.key));
    } else {
      out_.problems.add(where(entry.line), str(what, "; nearest key: ", nearest.key));
    }
  }

  void not_a_section(const std::string& path, const Node::Entry& entry) {
    std::string keys;
    int count = 0;
    for (const Option& option : options()) {
      if (!option.key.starts_with(path + ".") || option.effect != Effect::kUsed || ++count > 4)
        continue;
      keys += str(keys.empty() ? "" : ", ", option.key.substr(path.size() + 1));
    }
    out_.problems.add(where(entry.line),
                      str(path, ": expected a section", keys.empty() ? "" : " with keys such as ",
                          keys, ", found ", shown(entry.value)));
  }

  const Source& source_;
  Collected& out_;
};

}  // namespace

std::string Setting::origin() const { return path == option->key ? where : str(where, ": ", path); }

void Problems::add(const std::string& where, const std::string& text, const std::string& hint) {
  Problem problem;
  problem.text = str(where, ": ", text, hint.empty() ? "" : "\n  hint: ", hint);
  const std::size_t colon = where.rfind(':');
  if (!where.starts_with("--") && colon != std::string::npos) {
    problem.file = where.substr(0, colon);
    problem.line =
        static_cast<int>(parse_integer(std::string_view(where).substr(colon + 1)).value_or(0));
  }
  problems_.push_back(std::move(problem));
}

void Problems::add(const std::string& line) { problems_.push_back({"", 0, line}); }

void Problems::throw_if_any() const {
  if (problems_.empty()) return;
  std::vector<Problem> sorted = problems_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Problem& a, const Problem& b) {
    if (a.file.empty() != b.file.empty()) return b.file.empty();
    return std::tie(a.file, a.line) < std::tie(b.file, b.line);
  });
  constexpr std::size_t kMost = 20;
  std::string all;
  for (std::size_t i = 0; i < sorted.size() && i < kMost; ++i)
    all += (i ? "\n" : "") + sorted[i].text;
  if (sorted.size() > kMost) all += str("\nand ", sorted.size() - kMost, " more");
  throw Error(ErrorKind::kUsage, all);
}

void collect(const Node& root, const Source& source, Collected& out) {
  Walker(source, out).section("", root);
}

void collect_set(const std::string& text, const std::filesystem::path& base, int level,
                 Collected& out) {
  const std::size_t equals = text.find('=');
  const std::string name = str("--set ", clipped(text));
  if (equals == std::string::npos || equals == 0) {
    out.problems.add(name, "expected KEY=VALUE", "for example --set train.steps=100");
    return;
  }
  Source source{name, base, level, false};
  Node::Entry entry;
  entry.key = text.substr(0, equals);
  entry.line = 1;
  try {
    entry.value = parse_yaml(text.substr(equals + 1), name);
  } catch (const Error& error) {
    out.problems.add(error.what());
    return;
  }
  Walker(source, out).visit(entry.key, entry);
}

}  // namespace zinf::config
