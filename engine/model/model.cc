#include "engine/model/model.h"

#include <algorithm>
#include <array>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/model/family.h"
#include "engine/model/lm_head.h"
#include "engine/model/torch_runtime.h"

namespace zinf::model {

bool is_known_activation(std::string_view name);

std::string known_families() {
  std::vector<std::string> names;
  for (const Family& family : all_families())
    names.insert(names.end(), family.model_types.begin(), family.model_types.end());
  std::sort(names.begin(), names.end());
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

Model load_model(const JsonConfig& config, const ModelOptions& options) {
  const std::string type = config.text("model_type");
  for (const Family& family : all_families()) {
    if (std::find(family.model_types.begin(), family.model_types.end(), type) ==
        family.model_types.end())
      continue;
    check_not_quantised(config);
    Model model = family.build(config, options.dropout);
    model.spec.family = family.name;
    model.spec.compute_type = options.compute_type;
    if (options.compute_type == DType::kBFloat16 && has_bf16_hardware()) {
      narrow_estimates(model.spec);
    } else if (options.compute_type != DType::kFloat32) {
      add_widening(model.spec);
    }
    apply_freeze(model.spec, options.freeze);
    return model;
  }
  throw Error(ErrorKind::kUsage,
              str(config.where("model_type"), ": model family \"", type, "\" is not implemented"),
              str("implemented: ", known_families()));
}

std::vector<std::string> tensor_names(const ModelSpec& spec) {
  std::vector<std::string> names;
  for (const PieceSpec& piece : spec.pieces) {
    for (const TensorSpec& tensor : piece.tensors) names.push_back(tensor.name);
  }
  return names;
}

TensorSpec weight_tensor(std::string name, std::vector<std::int64_t> shape, double init_std) {
  TensorSpec tensor;
  tensor.name = std::move(name);
  tensor.shape = std::move(shape);
  tensor.init_std = init_std;
  return tensor;
}

TensorSpec norm_or_bias_tensor(std::string name, std::int64_t width, double value) {
  TensorSpec tensor;
  tensor.name = std::move(name);
  tensor.shape = {width};
  tensor.norm_or_bias = true;
  tensor.init_value = value;
  return tensor;
}

int add_piece(ModelSpec& spec, std::string name, std::vector<TensorSpec> tensors, bool table) {
  PieceSpec piece;
  piece.name = std::move(name);
  piece.tensors = std::move(tensors);
  piece.table = table;
  lay_out(piece);
  spec.pieces.push_back(std::move(piece));
  return static_cast<int>(spec.pieces.size()) - 1;
}

int add_activation(ModelSpec& spec, std::string name, std::int64_t width) {
  spec.activations.push_back({std::move(name), width});
  return static_cast<int>(spec.activations.size()) - 1;
}

StageSpec make_stage(std::string name, StageKind kind, std::vector<int> pieces,
                     std::vector<int> inputs, std::vector<int> outputs) {
  StageSpec stage;
  stage.name = std::move(name);
  stage.kind = kind;
  stage.pieces = std::move(pieces);
  stage.inputs = std::move(inputs);
  stage.outputs = std::move(outputs);
  return stage;
}

void check_activation(const JsonConfig& config, std::string_view key, const std::string& name) {
  if (is_known_activation(name)) return;
  throw Error(ErrorKind::kUsage,
              str(config.where(key), ": activation function \"", name, "\" is not implemented"),
              "implemented: gelu, gelu_fast, gelu_new, gelu_pytorch_tanh, relu, silu, swish");
}

double dropout_rate(const JsonConfig& config, std::string_view key, double missing) {
  const double rate = config.number_or(key, 0, 1, missing);
  if (rate < 1) return rate;
  throw Error(ErrorKind::kUsage, str(config.where(key), " is 1, which drops everything"),
              "expected a probability of at least 0 and below 1");
}

void choose_dropout(Model& model, const DropoutRates& in_config, std::optional<double> chosen) {
  const auto rate = [&](double configured) {
    model.config_dropout = std::max(model.config_dropout, configured);
    return configured < 0 ? 0.0 : chosen.value_or(configured);
  };
  model.spec.dropout = {rate(in_config.embedding), rate(in_config.residual),
                        rate(in_config.attention)};
  if (chosen.value_or(0) > 0 && !model.spec.dropout.any()) {
    throw Error(ErrorKind::kUsage,
                str("train.dropout: found ", *chosen, ", but this model has no place for dropout"),
                "set train.dropout: 0");
  }
}

void check_not_quantised(const JsonConfig& config) {
  if (!config.has("quantization_config")) return;
  throw Error(ErrorKind::kUsage,
              str(config.where("quantization_config"), ": quantised weights cannot be trained"),
              "use the folder that the quantised one was made from");
}

void estimate_head(StageSpec& stage, std::int64_t width, std::int64_t vocabulary) {
  const double chunk = static_cast<double>(head_positions_per_chunk(vocabulary));
  const auto rows = static_cast<double>(std::min(head_rows_per_slice(width), vocabulary));
  const double slice = 4.0 * rows * static_cast<double>(width);
  // Below one chunk logits grow with positions, above they do not: the smaller of both is exact,
  // the chunk safe.
  const double all_logits = chunk * 4 * static_cast<double>(vocabulary + 16);
  const double logits = chunk * 4 * (rows + 16);
  // The loss alone needs those of one slice of the table at a time, its gradients all at once.
  const double forward = 12.0 * static_cast<double>(width), backward = 2 * forward;
  stage.forward_workspace = stage.slice_forward_workspace = {logits + slice, forward, 0};
  stage.backward_workspace = {all_logits + 2 * slice, backward, 0};
  stage.slice_backward_workspace = {2 * (logits + slice), backward, 0};
}

namespace {
std::array<WorkspaceEstimate*, 4> estimates_of(StageSpec& stage) {
  return {&stage.forward_workspace, &stage.backward_workspace, &stage.slice_forward_workspace,
          &stage.slice_backward_workspace};
}
}  // namespace

void narrow_estimates(ModelSpec& spec) {
  // Half, and what stays fp32: a row of logits, attention's blocks; log-sums and statistics of
  // norms.
  constexpr double kShare = 0.6, kKeptShare = 0.55;
  for (StageSpec& stage : spec.stages) {
    if (stage.kind == StageKind::kLookup) continue;
    stage.kept.per_position *= kKeptShare;
    // Attention with dropout computes in fp32, whose blocks are in the same figure.
    if (spec.dropout.attention > 0 && stage.kind == StageKind::kBlock) continue;
    for (WorkspaceEstimate* estimate : estimates_of(stage)) {
      estimate->constant *= kShare;
      estimate->per_position *= kShare;
    }
  }
}

void add_widening(ModelSpec& spec) {
  for (StageSpec& stage : spec.stages) {
    if (stage.kind == StageKind::kLookup) continue;
    double constant = 0, per_position = 0;
    for (const int piece : stage.pieces) {
      for (const TensorSpec& tensor : spec.pieces[piece].tensors) {
        if (stage.table < 0 || piece != stage.pieces[stage.table])
          constant += 4.0 * static_cast<double>(tensor.elements) + 256;
      }
    }
    for (const auto* activations : {&stage.inputs, &stage.outputs}) {
      for (const int number : *activations) {
        per_position += 8.0 * static_cast<double>(spec.activations[number].width);
      }
    }
    for (WorkspaceEstimate* estimate : estimates_of(stage)) {
      estimate->constant += constant;
      estimate->per_position += per_position;
    }
  }
}

}  // namespace zinf::model
