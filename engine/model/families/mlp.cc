// A plain regression network: `layers` blocks of [linear d -> 4d, GELU, linear 4d -> d], then a
// scalar head with mean squared error. The example that DeepSpeed's ZeRO page made known.
#include "engine/model/aten.h"

#include <cmath>

#include "engine/base/str.h"
#include "engine/model/family.h"
#include "engine/model/stage_functions.h"

namespace zinf::model {
namespace {

class MlpFunctions final : public StageFunctions {
 public:
  explicit MlpFunctions(std::int64_t width) : width_(width) {}

  std::vector<Value> block(int stage, Tape& tape, StageWeights& weights,
                           const std::vector<Value>& inputs,
                           const BatchView& batch) const override {
    const std::string prefix = str("layers.", stage, ".");
    const Value x = inputs.empty() ? features(tape, batch) : inputs[0];
    const Value up = tape.linear(x, weights(prefix + "up.weight"), &weights(prefix + "up.bias"));
    return {tape.linear(tape.activation(up, "gelu"), weights(prefix + "down.weight"),
                        &weights(prefix + "down.bias"))};
  }

  HeadResult head(Tape& tape, StageWeights& weights, const Value& input,
                  const BatchView&) const override {
    return {tape.linear(input, weights("head.weight"), &weights("head.bias")), ""};
  }

 private:
  // The first block has no input activation: it reads the samples.
  Value features(Tape& tape, const BatchView& batch) const {
    const at::Tensor values = at::from_blob(const_cast<float*>(batch.batch->features.data()),
                                            {batch.rows, width_}, at::kFloat);
    return tape.input(values.to(tape.type()), false);
  }

  std::int64_t width_;
};

std::vector<TensorSpec> linear_tensors(const std::string& name, std::int64_t out, std::int64_t in) {
  // The spread of PyTorch's default for nn.Linear, uniform in +-1 / sqrt(in).
  const double std = 1 / std::sqrt(3.0 * static_cast<double>(in));
  TensorSpec bias = norm_or_bias_tensor(name + ".bias", out, 0);
  bias.init_std = std;
  return {weight_tensor(name + ".weight", {out, in}, std), bias};
}

Model build(const JsonConfig& config, std::optional<double> dropout) {
  const std::int64_t d = config.integer("d", 1, kMostWidth / 4);
  const std::int64_t layers = config.integer("layers", 1, kMostLayers);
  const std::int64_t inner = config.integer_or("hidden", 1, kMostWidth, 4 * d);
  const double width = static_cast<double>(d);
  const double wide = static_cast<double>(inner);  // of the hidden layer
  Model model;
  ModelSpec& spec = model.spec;
  choose_dropout(model, {-1, -1, -1}, dropout);
  spec.feature_width = d;
  std::vector<int> flow;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    StageSpec block = make_stage(str("layer ", layer), StageKind::kBlock, {}, flow, {});
    std::vector<TensorSpec> tensors = linear_tensors(str("layers.", layer, ".up"), inner, d);
    for (TensorSpec& tensor : linear_tensors(str("layers.", layer, ".down"), d, inner))
      tensors.push_back(std::move(tensor));
    block.pieces = {add_piece(spec, str("layers.", layer), std::move(tensors))};
    flow = {add_activation(spec, str("hidden ", layer), d)};
    block.outputs = flow;
    block.forward_flops_per_position = 4 * width * wide;
    block.forward_workspace = {65536, 4 * (3 * width + 2 * wide), 0};
    block.backward_workspace = {65536, 4 * (6 * width + 3 * wide), 0};
    block.kept = {64 * 8, 4 * (width + 2 * wide), 0};
    spec.stages.push_back(block);
  }
  StageSpec head = make_stage("head", StageKind::kHead, {}, flow, {});
  head.pieces = {add_piece(spec, "head", linear_tensors("head", 1, d))};
  head.forward_flops_per_position = 2 * width;
  head.forward_workspace = {65536, 4 * 4 * width, 0};
  head.backward_workspace = {65536, 4 * 6 * width, 0};
  spec.stages.push_back(head);
  model.functions = std::make_shared<MlpFunctions>(d);
  return model;
}

}  // namespace

Family mlp_family() { return {"mlp", {"mlp"}, &build}; }

}  // namespace zinf::model
