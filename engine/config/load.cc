#include "engine/config/load.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/config/collect.h"
#include "engine/config/resolve.h"
#include "engine/config/text.h"
#include "engine/config/value.h"

namespace zinf::config {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostBytes = std::size_t{16} << 20;

// asked_by: "" for the config itself, else " (deepspeed at run.yaml:3)".
std::string read_file(const std::string& path, const std::string& asked_by) {
  const auto fail = [&](const std::string& why, const std::string& hint) {
    throw Error(ErrorKind::kUsage,
                str("cannot read config file '", clipped(path), "'", asked_by, ": ", why), hint);
  };
  std::error_code code;
  if (fs::is_directory(path, code)) fail("it is a folder", "give a YAML or JSON file");
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(std::strerror(errno ? errno : EIO), "check the path and its permissions");
  std::string text;
  char buffer[65536];
  while (in.read(buffer, sizeof buffer), in.gcount() > 0) {
    text.append(buffer, static_cast<std::size_t>(in.gcount()));
    if (text.size() > kMostBytes) fail("it has more than 16 MiB", "is it a config?");
  }
  if (in.bad()) fail(std::strerror(errno ? errno : EIO), "check the drive");
  return text;
}

Node parse_root(const std::string& text, const std::string& name) {
  const Node root = parse_yaml(text, name);
  if (root.is_map()) return root;
  if (root.is_null())
    throw Error(ErrorKind::kUsage,
                str(name, ":1: the file is empty; expected keys such as model, data and train"),
                "docs/config.md lists every key; configs/ has ready ones");
  throw Error(ErrorKind::kUsage,
              str(name, ":", root.line,
                  ": expected keys such as model, data and train at the top, found ", shown(root)),
              root.is_scalar() ? "a key is followed by ': ', with the blank" : "");
}

fs::path folder_of(const std::string& path) {
  return fs::absolute(path).lexically_normal().parent_path();
}

// Follows `deepspeed: FILE`; the setting with the highest level names the one file that is read.
void follow_deepspeed(Collected& collected, RunConfig& config) {
  const Setting* winner = nullptr;
  for (const Setting& setting : collected.settings)
    if (setting.option->key == "deepspeed" && (!winner || setting.level >= winner->level))
      winner = &setting;
  if (!winner) return;
  if (!winner->value.is_scalar() || winner->value.text.empty()) {
    collected.problems.add(winner->where,
                           str("deepspeed: expected a path, found ", shown(winner->value)));
    return;
  }
  if (winner->is_auto()) return;
  const std::string path = absolute_path(winner->value.text, winner->base);
  const std::string shown_as = winner->value.text;
  config.origins.by_key["deepspeed"] = winner->where;
  const std::string text = read_file(path, str(" (deepspeed at ", winner->where, ")"));
  const std::size_t before = collected.settings.size();
  collect(parse_root(text, shown_as), Source{shown_as, folder_of(path), 1, true}, collected);
  for (std::size_t i = before; i < collected.settings.size(); ++i)
    if (collected.settings[i].option->key == "deepspeed")
      collected.problems.add(collected.settings[i].where,
                             "deepspeed: a DeepSpeed file cannot name another one");
}

void apply_overrides(const Overrides& overrides, int level, Collected& collected) {
  const auto add = [&](const char* key, const char* flag, const std::string& text,
                       const fs::path& base) {
    Setting setting;
    setting.option = find_option(key);
    setting.path = key;
    setting.value.type = Node::Type::kScalar;
    setting.value.text = text;
    setting.written = text;
    setting.where = str(flag, " ", text);
    setting.base = base;
    setting.level = level;
    collected.settings.push_back(std::move(setting));
  };
  if (overrides.steps) add("train.steps", "--steps", std::to_string(*overrides.steps), "/");
  if (overrides.run_dir) add("output_dir", "--run-dir", *overrides.run_dir, fs::current_path());
}

}  // namespace

LoadResult load_text(const std::string& text, const std::string& path,
                     std::span<const std::string> sets, const Overrides& overrides) {
  LoadResult result;
  Collected collected;
  const fs::path base = folder_of(path);
  collect(parse_root(text, path), Source{path, base, 1, true}, collected);
  int level = 2;
  for (const std::string& set : sets) collect_set(set, base, level++, collected);
  apply_overrides(overrides, level, collected);
  follow_deepspeed(collected, result.config);
  const Chosen chosen = resolve(collected, result.config);
  check_combinations(chosen, result.config, collected);
  collected.problems.throw_if_any();

  result.config.origins.config_name = fs::path(path).stem().string();
  if (result.config.output_dir.empty())
    result.config.output_dir = (base / "runs" / fs::path(path).stem()).lexically_normal().string();
  result.notes = std::move(collected.notes);
  return result;
}

LoadResult load(const std::string& path, std::span<const std::string> sets,
                const Overrides& overrides) {
  return load_text(read_file(path, ""), path, sets, overrides);
}

void require_model(const RunConfig& config) {
  const ModelConfig& model = config.model;
  if (model.type == ModelType::kHf && !model.path)
    throw Error(ErrorKind::kUsage,
                "model.path is missing: expected a Hugging Face folder or a Hub id",
                "add model: {path: FOLDER}, or model: {type: mlp, width: 1024, layers: 8}");
  if (model.type != ModelType::kMlp) return;
  for (const auto& [key, value] :
       {std::pair{"width", model.width}, std::pair{"layers", model.layers}})
    if (!value)
      throw Error(ErrorKind::kUsage,
                  str("model.", key, " is missing: model.type: mlp needs width and layers"),
                  "for example model: {type: mlp, width: 1024, layers: 8}");
}

void require_data(const RunConfig& config) {
  const bool random = config.data.format == DataFormat::kRandom;
  if (!random && config.data.train.empty())
    throw Error(ErrorKind::kUsage,
                "data.train is missing: expected a file, a pattern or a list of them",
                "add data: {train: FILE}, or data: {format: random}");
  if (random && !config.train.steps && !config.data.samples)
    throw Error(ErrorKind::kUsage, "train.steps is missing: random data has no end",
                "add train: {steps: 100}");
}

}  // namespace zinf::config
