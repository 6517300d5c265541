// Reads a configuration: YAML or JSON file, DeepSpeed keys inline or from `deepspeed: FILE`, --set,
// command line. Later wins: defaults, then the files (which must not contradict each other), then
// --set, then Overrides.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/config/run_config.h"

namespace zinf::config {

// What the command line sets by its own options.
struct Overrides {
  std::optional<std::int64_t> steps;   // --steps; replaces train.steps and train.epochs
  std::optional<std::string> run_dir;  // --run-dir; relative to the current folder
};

// What the user should be told once, in this order.
struct Note {
  enum class Kind { kReadAs, kNoEffect, kChosen };
  Kind kind = Kind::kReadAs;
  std::string text;
};

struct LoadResult {
  RunConfig config;
  std::vector<Note> notes;
};

// Opens nothing but the config files. Throws Error(kUsage) that lists every mistake found, one a
// line, each as "FILE:LINE: KEY: what is wrong, the value found, what was expected, the nearest
// key".
LoadResult load(const std::string& path, std::span<const std::string> sets = {},
                const Overrides& overrides = {});

// As load(), from text; `path` is only for messages and relative paths.
LoadResult load_text(const std::string& text, const std::string& path,
                     std::span<const std::string> sets = {}, const Overrides& overrides = {});

// What training needs beyond a well-formed config: throws Error(kUsage) when model.path (or the
// mlp's sizes) is missing; when data.train is missing, or random data has no end.
void require_model(const RunConfig& config);
void require_data(const RunConfig& config);

}  // namespace zinf::config
