#include "engine/config/reference.h"

#include <map>
#include <sstream>

#include "engine/base/str.h"
#include "engine/config/options.h"

namespace zinf::config {

namespace {

std::string top(const std::string& key) { return key.substr(0, key.find('.')); }

std::string join(const std::vector<std::string>& words, const std::string& before,
                 const std::string& after) {
  std::string out;
  for (const std::string& word : words) out += str(out.empty() ? "" : ", ", before, word, after);
  return out;
}

std::string cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2)
    text.replace(at, 1, "\\|");
  return text;
}

const char* kCombinations =
    "\n## Combinations\n"
    "\n"
    "| combination | verdict |\n|---|---|\n"
    "| ZeRO stage 0, 1 or 2 with `offload_param` on cpu or nvme | refused: parameter offload needs "
    "stage 3 or `auto`; "
    "`placement.weights` pins at any stage |\n"
    "| any ZeRO stage with `offload_optimizer` | supported: placement does not depend on the stage "
    "|\n"
    "| `offload_*.device` | pins `placement.*`: none = device, cpu = host, nvme; `placement: auto` "
    "takes it back |\n"
    "| nvme in `placement` or `offload_*` without `nvme_path` and `memory.nvme` | refused |\n"
    "| `nvme_path` that is not in a given `memory.nvme` | refused |\n"
    "| bf16 and fp16 both on | refused; with fp16 on, bf16 at `auto` is off |\n"
    "| `offload_optimizer.ratio` | no effect: the device pins all optimizer state |\n"
    "| negative `gradient_clipping` | refused; 0 and an absent key mean none, `auto` means 1.0 |\n"
    "| AdamW with `adam_w_mode: false` | refused; `Adam` with it is Adam with L2 |\n"
    "| `master_weights: split` or `bf16-sr` with fp32 or fp16 weights | refused |\n"
    "| warm-up longer than the schedule or the run | refused; 0 and 1 are allowed |\n"
    "| `train.steps` with `train.epochs`; `data.eval` with `data.eval_fraction` | refused; `--set` "
    "and `--steps` replace "
    "the other |\n"
    "| two sources of one key | accepted where they agree or one is `auto`; refused where they "
    "differ |\n"
    "| batch sizes that do not agree with the number of ranks | refused, with all four numbers and "
    "their origins |\n";

std::string row(const Option& option) {
  const std::string unit = option.unit.empty() ? "" : str(" (", option.unit, ")");
  std::string help = option.help;
  if (!option.synonyms.empty()) {
    std::vector<std::string> names;
    for (const auto& [other, meant] : option.synonyms) names.push_back(str(other, " = ", meant));
    help += str(" Also written: ", join(names, "", ""), ".");
  }
  if (!option.aliases.empty()) help += str(" Read as this: ", join(option.aliases, "`", "`"), ".");
  return str("| `", option.key, "` | ", cell(expected_text(option)), unit, " | ",
             cell(option.default_text), " | ", cell(help), " |\n");
}

const char* kIntro =
    "# Config reference\n"
    "\n"
    "Made from the option table in `engine/config`; a test compares this page with it.\n"
    "\n"
    "- A config is YAML, nested; JSON is YAML. DeepSpeed's keys stand beside zinf's own, or in a "
    "file named by "
    "`deepspeed: FILE`.\n"
    "- `--set a.b=c` sets one key; `c` is YAML. Later wins: defaults, files, `--set` in order, "
    "`--steps` and "
    "`--run-dir`.\n"
    "- Unknown, duplicate and contradicting keys are errors. `auto` is accepted everywhere and "
    "means what an absent key "
    "means, where the table does not say otherwise.\n"
    "- Relative paths are relative to the file they stand in (`--set`: to the config file; "
    "`--run-dir`: to the current "
    "folder). `~/` is the home folder.\n"
    "- Sizes: `4GiB`, `1.5TB`, a bare number is bytes. Durations: `500ms`, `25s`, `10m`, `2h`, "
    "`1d`. An integer may be "
    "written as `5e8`, never as `1.5`, `010` or `1e-3`.\n"
    "- `optimizer`, `scheduler`, `bf16` and `fp16` may be one word: `optimizer: AdamW`, `bf16: "
    "true`.\n";

void used_sections(std::ostringstream& out) {
  std::string section;
  for (const Option& option : options()) {
    if (option.effect != Effect::kUsed) continue;
    const bool alone = option.key.find('.') == std::string::npos && option.key != "placement";
    const std::string name = alone ? "(top level)" : top(option.key);
    if (name != section)
      out << "\n## " << (alone ? "Top level" : "`" + name + "`")
          << "\n\n| key | value | default | meaning |\n|---|---|---|---|\n";
    section = name;
    out << row(option);
  }
}

void by_reason(std::ostringstream& out, Effect effect) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<std::string>> keys;
  for (const Option& option : options()) {
    if (option.effect != effect) continue;
    std::string text = option.key;
    if (!option.harmless.empty()) text += str(" (other than ", join(option.harmless, "", ""), ")");
    if (keys[option.reason].empty()) order.push_back(option.reason);
    keys[option.reason].push_back(text);
  }
  out << "\n| keys | " << (effect == Effect::kNone ? "why" : "what to do") << " |\n|---|---|\n";
  for (const std::string& reason : order)
    out << "| " << join(keys[reason], "`", "`") << " | " << cell(reason) << " |\n";
}

}  // namespace

std::string reference_markdown() {
  std::ostringstream out;
  out << kIntro;
  used_sections(out);
  out << kCombinations;
  out << "\n## DeepSpeed keys without effect here\n\nAccepted, checked for type and range, and "
         "named once at start.\n";
  by_reason(out, Effect::kNone);
  out << "\n## DeepSpeed keys that are refused\n\nA section is accepted where it is switched off "
         "(`enabled: false`).\n";
  by_reason(out, Effect::kRefused);
  return out.str();
}

std::string help_text() {
  std::ostringstream out;
  for (const Option& option : options())
    if (option.effect == Effect::kUsed)
      out << "  " << option.key << ": " << expected_text(option) << " [" << option.default_text
          << "]\n      " << option.help << "\n";
  return out.str();
}

std::vector<std::string> describe(const RunConfig& config) {
  std::vector<std::string> out;
  for (const Option& option : options())
    if (option.get)
      out.push_back(str(option.key, " = ", value_text(option, option.get(config)), " (",
                        config.origin(option.key), ")"));
  return out;
}

std::string resolved_yaml(const RunConfig& config) {
  // Sections in the order of the table; keys of one section may stand apart there.
  std::vector<std::pair<std::string, std::vector<const Option*>>> sections;
  for (const Option& option : options()) {
    if (!option.get) continue;
    auto found = sections.begin();
    while (found != sections.end() && found->first != top(option.key)) ++found;
    if (found == sections.end()) found = sections.insert(found, {top(option.key), {}});
    found->second.push_back(&option);
  }
  std::ostringstream out;
  for (const auto& [name, keys] : sections) {
    std::vector<std::string> open;  // section names written so far
    for (const Option* option : keys) {
      std::istringstream path(option->key);
      std::vector<std::string> parts;
      for (std::string part; std::getline(path, part, '.');) parts.push_back(part);
      std::size_t same = 0;
      while (same < open.size() && same + 1 < parts.size() && open[same] == parts[same]) ++same;
      open.resize(same);
      for (; open.size() + 1 < parts.size(); open.push_back(parts[open.size()]))
        out << std::string(2 * open.size(), ' ') << parts[open.size()] << ":\n";
      out << std::string(2 * open.size(), ' ') << parts.back() << ": "
          << value_text(*option, option->get(config));
      const std::string origin = config.origin(option->key);
      if (origin != "default") out << "  # " << origin;
      out << "\n";
    }
  }
  return out.str();
}

std::vector<Difference> differences(const RunConfig& before, const RunConfig& after) {
  std::vector<Difference> out;
  for (const Option& option : options()) {
    if (!option.get) continue;
    const Value a = option.get(before);
    const Value b = option.get(after);
    if (!(a == b)) out.push_back({option.key, value_text(option, a), value_text(option, b)});
  }
  return out;
}

}  // namespace zinf::config
