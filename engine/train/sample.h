// What the model says: a prompt continued by a few tokens.
#pragma once

#include <string>
#include <vector>

#include "engine/config/run_config.h"
#include "engine/data/loader.h"
#include "engine/data/prepare.h"
#include "engine/step/trainer.h"
#include "engine/train/model_input.h"

namespace zinf::train {

class Sampler {
 public:
  // Does nothing when the config asks for no sample or the model is no language model.
  Sampler(const config::RunConfig& config, const ModelInput& model, const plan::ShapeClass& shape);
  // Greedy continuation, to the log. The trainer must be drained.
  void print(step::Trainer& trainer, const std::string& when) const;

 private:
  static constexpr int kNewTokens = 24;
  std::string prompt_;
  data::PrepareTool tool_;
  std::string model_folder_;
  std::vector<std::int32_t> ids_;
  std::size_t longest_ = 0;
};

// The tokenizer, for texts that people read.
data::PrepareTool tool_for(const config::RunConfig& config);

}  // namespace zinf::train
