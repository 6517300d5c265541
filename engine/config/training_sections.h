// Sections of a configuration that say how to train, store and export. See run_config.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/config/sections.h"

namespace zinf::config {

struct OptimizerConfig {
  OptimizerType type = OptimizerType::kAdamW;
  double lr = 5e-5, eps = 1e-8, weight_decay = 0, momentum = 0;
  std::optional<std::array<double, 2>> betas;  // auto: those of the algorithm's paper
  bool adam_w_mode = true;
  bool no_decay_on_norms_and_biases = false;
  StateDtype state_dtype = StateDtype::kFp32;
  std::optional<MasterWeights> master_weights;  // auto: split where weights are bf16, else fp32
  std::optional<std::int64_t> threads;          // auto: one for each usable physical core
  // False only for Adam with adam_w_mode: false (decay added to the gradient), Adagrad and SGD.
  bool decoupled_decay() const {
    return type == OptimizerType::kAdamW || type == OptimizerType::kLion ||
           (type == OptimizerType::kAdam && adam_w_mode);
  }
  std::array<double, 2> effective_betas() const {
    return betas.value_or(std::array<double, 2>{0.9, type == OptimizerType::kLion ? 0.99 : 0.999});
  }
  bool operator==(const OptimizerConfig&) const = default;
};

struct SchedulerConfig {  // steps are optimizer updates
  SchedulerType type = SchedulerType::kConstant;
  std::optional<std::int64_t> warmup_num_steps;  // auto: warmup_ratio x total, rounded up
  std::optional<std::int64_t> total_num_steps;   // auto: the run's steps
  double warmup_ratio = 0, warmup_min_lr = 0, warmup_min_ratio = 0, cos_min_ratio = 1e-4;
  std::optional<double> warmup_max_lr;  // auto: the optimizer's lr
  WarmupType warmup_type = WarmupType::kLog;
  bool operator==(const SchedulerConfig&) const = default;
};

struct GradientsConfig {
  GradientDtype dtype = GradientDtype::kFp32;
  bool operator==(const GradientsConfig&) const = default;
};

// The loss scale of fp16 training, with DeepSpeed's keys, defaults and rules.
struct Fp16Config {
  double loss_scale = 0;  // 0: dynamic
  std::int64_t initial_scale_power = 16;
  std::int64_t loss_scale_window = 1000, hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;
  bool operator==(const Fp16Config&) const = default;
};

struct IoConfig {
  std::optional<IoEngine> engine;
  std::optional<Bytes> block_size;  // auto: the tuned profile's
  std::optional<std::int64_t> depth, threads;
  bool verify = true;
  bool operator==(const IoConfig&) const = default;
};

struct CheckpointConfig {
  std::optional<Cadence> every;  // auto: each step if all is on NVMe, else 10 minutes
  std::int64_t keep = 1;
  std::optional<Cadence> keep_every;
  std::int64_t slots = 2;
  double grace = 25;  // seconds
  bool operator==(const CheckpointConfig&) const = default;
};

struct ExportConfig {
  bool at_end = true;
  std::optional<ExportDtype> dtype;  // auto: bf16 where the weights are bf16, else fp32
  Bytes shard_size = 5'000'000'000;  // of a file at most, unless one tensor is larger
  bool single_file = false;
  bool at_kept_checkpoints = false;  // stage3_gather_16bit_weights_on_model_save
  bool operator==(const ExportConfig&) const = default;
};

struct BatchConfig {  // as asked for; resolve_batch() in batch.h does the arithmetic
  std::optional<std::int64_t> total, micro, accumulation;
  bool operator==(const BatchConfig&) const = default;
};

}  // namespace zinf::config
