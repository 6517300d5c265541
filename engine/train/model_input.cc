#include "engine/train/model_input.h"

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/str.h"
#include "engine/model/torch_runtime.h"

namespace zinf::train {

namespace {

std::string mlp_config(const config::ModelConfig& model) {
  return str("{\"model_type\": \"mlp\", \"d\": ", model.width.value_or(1024),
             ", \"layers\": ", model.layers.value_or(8),
             model.hidden ? str(", \"hidden\": ", *model.hidden) : std::string(), "}");
}

model::DType compute_type(const config::RunConfig& config) {
  if (!config.precision)
    return model::has_bf16_hardware() ? model::DType::kBFloat16 : model::DType::kFloat32;
  switch (*config.precision) {
    case config::Precision::kFp32:
      return model::DType::kFloat32;
    case config::Precision::kBf16:
      return model::DType::kBFloat16;
    case config::Precision::kFp16:
      return model::DType::kFloat16;
  }
  return model::DType::kFloat32;
}

void say_dropout(const model::Model& model, const config::RunConfig& config) {
  const model::DropoutRates& rates = model.spec.dropout;
  if (rates.any()) {
    log::info(str("dropout: embedding ", rates.embedding, ", residual ", rates.residual,
                  ", attention ", rates.attention));
  } else if (model.config_dropout > 0 && config.train.dropout) {
    log::info(str("the model's config asks for dropout ", model.config_dropout,
                  "; zinf trains without (train.dropout: 0)"));
  }
}

}  // namespace

ModelInput open_model(const config::RunConfig& config, bool weights) {
  ModelInput input;
  model::ModelOptions options;
  options.compute_type = compute_type(config);
  options.freeze = config.train.freeze;
  options.dropout = config.train.dropout;
  const bool random = config.model.init == config::ModelInit::kRandom ||
                      config.model.type == config::ModelType::kMlp;
  if (config.model.type == config::ModelType::kMlp) {
    input.config_text = mlp_config(config.model);
    input.model =
        load_model(model::JsonConfig::parse(input.config_text, "model (type: mlp)"), options);
  } else {
    if (!config.model.path) {
      throw Error(ErrorKind::kUsage, "model.path is missing: expected an HF folder or a Hub id",
                  "set model.path, or model.type: mlp");
    }
    const bool config_only = random || !weights;
    const auto use = config_only ? model::FolderUse::kConfigOnly : model::FolderUse::kWithWeights;
    input.folder =
        std::make_unique<model::HfFolder>(model::HfFolder::open(*config.model.path, use));
    input.config_text = input.folder->config_text();
    input.model = load_model(input.folder->config(), options);
  }
  say_dropout(input.model, config);
  if (random) {
    input.weights = model::random_weights(static_cast<std::uint64_t>(config.train.seed));
  } else if (weights) {
    input.tensors = check_tensors(input.model.spec, *input.folder, input.model.rules);
    input.weights = folder_weights(*input.folder, *input.tensors);
  }
  return input;
}

}  // namespace zinf::train
