// Where a model's first weights come from: an HF folder, or random init. Yields fp32 masters range
// by range, so that a piece never needs to be in memory as a whole.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/model/hf_folder.h"
#include "engine/model/model_spec.h"

namespace zinf::model {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // Elements [first, first + count) of the piece as fp32 masters; gaps and padding get zeros.
  // Thread-safe.
  virtual void read_piece(const PieceSpec& piece, std::int64_t first, std::int64_t count,
                          float* master) const = 0;
};

// Two names of one tensor, as the family and config.json say (tie_word_embeddings).
struct TiedName {
  std::string name;   // the ModelSpec's, e.g. "model.embed_tokens.weight"
  std::string alias;  // e.g. "lm_head.weight"; never in the ModelSpec
};

struct TensorRules {
  std::vector<TiedName> tied;
  std::vector<std::string>
      buffers;  // glob patterns: tensors that the family knows and does not train
  bool allow_unknown = false;
  // "transformer.": folders saved from the bare model lack this start of the spec's names.
  std::string optional_prefix = "";
};

// What check_tensors found: where each of the spec's tensors is in the folder, and what else the
// folder holds.
struct TensorMap {
  // Spec name -> folder name; they differ for a lone alias and where the prefix is dropped.
  std::unordered_map<std::string, std::string> folder_name;
  std::vector<std::string> carried;  // buffers and allowed unknowns: exports copy them
  std::string
      dropped_prefix;  // the rules' optional_prefix, where the folder lacks it; exports lack it too
};

// Error(kUsage) names: a missing tensor (never replaced by random values), a wrong shape (both
// shapes), a type that is no weight, an unknown tensor, a tied alias whose values differ from its
// partner's. Reads only tied tables.
TensorMap check_tensors(const ModelSpec& spec, const HfFolder& folder, const TensorRules& rules);

// F32, BF16, F16, F64 to fp32. `folder` must outlive the source.
std::unique_ptr<WeightSource> folder_weights(const HfFolder& folder, TensorMap map);

// TensorSpec's init: normal(0, init_std) or init_value. A value depends on (seed, tensor name,
// index in the whole tensor) only: not on pieces, slices, freezing or order.
std::unique_ptr<WeightSource> random_weights(std::uint64_t seed);

}  // namespace zinf::model
