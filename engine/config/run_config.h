// The resolved configuration as plain typed data. std::nullopt means "auto": a later stage (plan,
// data, train) decides. Everything else has its final value. Made by load() in load.h; every key is
// described in options.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "engine/config/sections.h"
#include "engine/config/training_sections.h"

namespace zinf::config {

// Where each value came from: key -> "default", "auto", "run.yaml:3", "--set", "ds.json:7, read as
// ...". Never part of a comparison of two configurations.
struct Origins {
  std::string config_name;  // the config file's name without its extension
  std::map<std::string, std::string> by_key;
  bool operator==(const Origins&) const { return true; }
};

struct RunConfig {
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  EvalConfig eval;
  MemoryConfig memory;
  PlacementConfig placement;
  StepConfig step;
  OptimizerConfig optimizer;
  SchedulerConfig scheduler;
  GradientsConfig gradients;
  Fp16Config fp16;
  IoConfig io;
  CheckpointConfig checkpoint;
  ExportConfig export_;
  BatchConfig batch;
  std::string output_dir;                                 // absolute
  double gradient_clipping = 0;                           // 0: none
  std::optional<Precision> precision = Precision::kFp32;  // auto: bf16 where the device has it
  std::optional<std::int64_t> zero_stage;                 // 0 .. 3
  Origins origins;

  // "default" for a key that nobody set.
  std::string origin(const std::string& key) const {
    const auto found = origins.by_key.find(key);
    return found == origins.by_key.end() ? "default" : found->second;
  }
  bool operator==(const RunConfig&) const = default;
};

}  // namespace zinf::config
