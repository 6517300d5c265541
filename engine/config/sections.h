// Sections of a configuration that say what to run and where it may live. See run_config.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/bytes.h"

namespace zinf::config {

enum class Tier { kDevice, kHost, kNvme };
enum class ModelInit { kPretrained, kRandom };
enum class ModelType { kHf, kMlp };
enum class DataFormat {
  kText,
  kMessages,
  kConversations,
  kAlpaca,
  kTokens,
  kCsv,
  kTensor,
  kRandom,
};
enum class OnChange { kRefuse, kRestart };
enum class OnNonfinite { kStop, kSkip };
enum class Speculate { kAuto, kNever, kAlways };
enum class OptimizerType { kAdamW, kAdam, kLion, kAdagrad, kSgd };
enum class StateDtype { kFp32, kBf16, kInt8 };
enum class MasterWeights { kFp32, kSplit, kBf16Sr };
enum class GradientDtype { kFp32, kBf16 };
enum class SchedulerType {
  kConstant,
  kLinear,
  kCosine,
  kWarmupLR,
  kWarmupDecayLR,
  kWarmupCosineLR
};
enum class WarmupType { kLog, kLinear };
enum class IoEngine { kIoUring, kLibaio, kThreads };
enum class Precision { kFp32, kBf16, kFp16 };
enum class ExportDtype { kBf16, kFp32 };

// Every so many steps, or every so many seconds: exactly one of the two.
struct Cadence {
  std::optional<std::int64_t> steps;
  std::optional<double> seconds;
  bool operator==(const Cadence&) const = default;
};

struct NvmeDrive {
  std::string path;                // absolute
  std::optional<Bytes> capacity;   // auto: free space - 10 %
  std::optional<Bytes> endurance;  // bytes that may be written in the drive's life (TBW)
  bool operator==(const NvmeDrive&) const = default;
};

struct ModelConfig {
  std::optional<std::string>
      path;  // folder (absolute), or a Hub id as written when no such folder exists
  ModelInit init = ModelInit::kPretrained;
  ModelType type = ModelType::kHf;
  std::optional<std::int64_t> width, layers, hidden;  // mlp: d, blocks, inner width (auto: 4 d)
  bool operator==(const ModelConfig&) const = default;
};

struct DataConfig {
  std::vector<std::string> train, eval;  // paths or globs, absolute
  double eval_fraction = 0;
  std::optional<std::int64_t> seq_len;
  bool packing = true, group_by_length = false, train_on_prompt = false;
  std::optional<DataFormat> format;
  OnChange on_change = OnChange::kRefuse;
  std::optional<std::string> target;        // csv: label column
  std::optional<std::int64_t> samples;      // random: samples per epoch; auto: endless
  std::optional<std::int64_t> token_width;  // bits per id of bare token files; auto: the header's
  bool operator==(const DataConfig&) const = default;
};

struct TrainConfig {
  std::optional<std::int64_t> steps;  // at most one of steps and epochs; neither: one epoch
  std::optional<double> epochs;
  std::int64_t seed = 42;
  std::optional<double> dropout = 0;  // nullopt: as the model's config.json says
  std::vector<std::string> freeze;
  OnNonfinite on_nonfinite = OnNonfinite::kStop;
  double stall_timeout = 1800;  // seconds; 0: never
  bool operator==(const TrainConfig&) const = default;
};

struct EvalConfig {
  std::optional<std::int64_t> every,
      steps;  // every: auto = only at the end; steps: auto = all of the eval data
  std::optional<std::string> sample;
  bool operator==(const EvalConfig&) const = default;
};

struct MemoryConfig {
  std::optional<Bytes> device, host;
  std::vector<NvmeDrive> nvme;
  bool pin = true;  // lock the I/O buffers' pages, as far as that is allowed
  bool operator==(const MemoryConfig&) const = default;
};

struct PlacementConfig {  // a value pins; origin("placement.optimizer") tells who pinned it
  std::optional<Tier> weights, optimizer, gradients, activations;
  bool operator==(const PlacementConfig&) const = default;
};

struct StepConfig {
  std::optional<std::int64_t> group;  // micro-batches per visit
  std::optional<bool> recompute;
  bool overlap = true;
  Speculate speculate = Speculate::kAuto;
  bool operator==(const StepConfig&) const = default;
};

}  // namespace zinf::config
