// A model ready for the planner (spec) and for make_torch_compute() (functions). No LibTorch in
// this header.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/model/json_config.h"
#include "engine/model/model_spec.h"
#include "engine/model/weight_source.h"

namespace zinf::model {

class StageFunctions;  // the stages' mathematics, over LibTorch tensors: stage_functions.h

struct Model {
  ModelSpec spec;
  TensorRules rules;  // names that an HF folder may hold besides the spec's: for check_tensors()
  double config_dropout = 0;  // the largest rate that config.json gives; used: spec.dropout
  // Shared: every Compute made from the model keeps using it, whichever lives longer.
  std::shared_ptr<const StageFunctions> functions;
};

struct ModelOptions {
  DType compute_type = DType::kFloat32;
  std::vector<std::string> freeze;      // glob patterns of tensor names
  std::optional<double> dropout = 0.0;  // nullopt: the rates of config.json
};

// Builds the model that `config` (an HF config.json, or {"model_type": "mlp", "d", "layers", ...})
// describes. Reads no weights. Error(kUsage) names file, key, value and what was expected: an
// unknown family, a size out of range, heads that do not divide, a rope scaling or activation that
// is not implemented.
Model load_model(const JsonConfig& config, const ModelOptions& options = {});

// Names of all families, sorted, for messages: "gpt2, llama, ...".
std::string known_families();

// Every tensor name of the spec, piece by piece.
std::vector<std::string> tensor_names(const ModelSpec& spec);

}  // namespace zinf::model
