// From the config's model section to a model: folder, config.json, stages, and where the first
// weights come from.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/config/run_config.h"
#include "engine/model/hf_folder.h"
#include "engine/model/model.h"

namespace zinf::train {

struct ModelInput {
  model::Model model;
  // None for `type: mlp`. Behind a pointer, so that moving a ModelInput leaves `weights` valid.
  std::unique_ptr<model::HfFolder> folder;
  std::optional<model::TensorMap>
      tensors;  // where the folder has the spec's tensors; none for random init
  std::unique_ptr<model::WeightSource> weights;
  std::string config_text;  // config.json of an export

  model::DType compute_type() const { return model.spec.compute_type; }
  std::string folder_path() const { return folder ? folder->path() : ""; }
};

// Error(kUsage) for everything that is wrong with the model. weights: whether they are needed
// (`zinf plan` needs none).
ModelInput open_model(const config::RunConfig& config, bool weights);

}  // namespace zinf::train
