// GPT-2: learned positions, layer norm, fused qkv projection, weights stored [in, out] as in its
// files.
#include "engine/model/aten.h"

#include <algorithm>
#include <cmath>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/model/family.h"
#include "engine/model/stage_functions.h"

namespace zinf::model {
namespace {

struct Settings {
  std::int64_t vocabulary, hidden, inner, layers, heads, max_length;
  double epsilon, init_std;
  bool tied, scale_by_width, scale_by_layer;
  std::string activation;
};

Settings read(const JsonConfig& config) {
  Settings s;
  s.vocabulary = config.integer("vocab_size", 1, kMostVocabulary);
  s.hidden = config.integer("n_embd", 1, kMostWidth / 4);
  s.layers = config.integer("n_layer", 1, kMostLayers);
  s.heads = config.integer("n_head", 1, kMostWidth);
  s.max_length = config.integer("n_positions", 1, kMostVocabulary);
  s.inner = config.integer_or("n_inner", 1, kMostWidth, 4 * s.hidden);
  if (s.hidden % s.heads != 0) {
    throw Error(ErrorKind::kUsage, str(config.where("n_embd"), " is ", s.hidden, ", which ",
                                       s.heads, " heads (n_head) do not divide"));
  }
  if (config.flag_or("add_cross_attention", false)) {
    throw Error(ErrorKind::kUsage,
                str(config.where("add_cross_attention"), ": cross attention is not implemented"));
  }
  s.epsilon = config.number_or("layer_norm_epsilon", 0, 1, 1e-5);
  s.init_std = config.number_or("initializer_range", 0, 10, 0.02);
  s.tied = config.flag_or("tie_word_embeddings", true);
  s.scale_by_width = config.flag_or("scale_attn_weights", true);
  s.scale_by_layer = config.flag_or("scale_attn_by_inverse_layer_idx", false);
  s.activation = config.text_or("activation_function", "gelu_new");
  check_activation(config, "activation_function", s.activation);
  return s;
}

std::string layer_prefix(std::int64_t layer) { return str("transformer.h.", layer, "."); }

std::vector<TensorSpec> layer_tensors(const Settings& s, std::int64_t layer) {
  const std::string prefix = layer_prefix(layer);
  std::vector<TensorSpec> tensors;
  const auto matrix = [&](const char* name, std::int64_t in, std::int64_t out, double std) {
    tensors.push_back(weight_tensor(str(prefix, name, ".weight"), {in, out}, std));
    tensors.push_back(norm_or_bias_tensor(str(prefix, name, ".bias"), out, 0));
  };
  const auto norm = [&](const char* name) {
    tensors.push_back(norm_or_bias_tensor(str(prefix, name, ".weight"), s.hidden, 1));
    tensors.push_back(norm_or_bias_tensor(str(prefix, name, ".bias"), s.hidden, 0));
  };
  const double to_residual = s.init_std / std::sqrt(2.0 * static_cast<double>(s.layers));
  norm("ln_1");
  matrix("attn.c_attn", s.hidden, 3 * s.hidden, s.init_std);
  matrix("attn.c_proj", s.hidden, s.hidden, to_residual);
  norm("ln_2");
  matrix("mlp.c_fc", s.hidden, s.inner, s.init_std);
  matrix("mlp.c_proj", s.inner, s.hidden, to_residual);
  return tensors;
}

class Gpt2Functions final : public StageFunctions {
 public:
  explicit Gpt2Functions(Settings settings) : s_(std::move(settings)) {}

  std::vector<Value> block(int stage, Tape& tape, StageWeights& weights,
                           const std::vector<Value>& inputs,
                           const BatchView& batch) const override {
    if (stage == 1) {
      return {
          tape.dropout(add_positions(tape, weights, inputs.at(0), batch), batch.dropout.embedding)};
    }
    const std::int64_t layer = stage - 2;
    const std::string prefix = layer_prefix(layer);
    const auto linear = [&](const char* name, const Value& x) {
      return tape.linear_transposed(x, weights(str(prefix, name, ".weight")),
                                    &weights(str(prefix, name, ".bias")));
    };
    const auto norm = [&](const char* name, const Value& x) {
      return tape.layer_norm(x, weights(str(prefix, name, ".weight")),
                             weights(str(prefix, name, ".bias")), s_.epsilon);
    };
    double scale =
        s_.scale_by_width ? 1 / std::sqrt(static_cast<double>(s_.hidden / s_.heads)) : 1.0;
    if (s_.scale_by_layer) scale /= static_cast<double>(layer + 1);
    const Tape::Heads heads{s_.heads, s_.heads, s_.hidden / s_.heads, 0, scale};
    Value x = inputs.at(0);
    {
      const auto qkv =
          tape.split(linear("attn.c_attn", norm("ln_1", x)), {s_.hidden, s_.hidden, s_.hidden});
      x = tape.add(x, tape.dropout(linear("attn.c_proj",
                                          tape.attention(qkv[0], qkv[1], qkv[2], heads, batch)),
                                   batch.dropout.residual));
    }
    const Value inner = tape.activation(linear("mlp.c_fc", norm("ln_2", x)), s_.activation);
    return {tape.add(x, tape.dropout(linear("mlp.c_proj", inner), batch.dropout.residual))};
  }

  HeadResult head(Tape& tape, StageWeights& weights, const Value& input,
                  const BatchView&) const override {
    return {tape.layer_norm(input, weights("transformer.ln_f.weight"),
                            weights("transformer.ln_f.bias"), s_.epsilon),
            s_.tied ? "transformer.wte.weight" : "lm_head.weight"};
  }

 private:
  Value add_positions(Tape& tape, StageWeights& weights, const Value& rows,
                      const BatchView& batch) const {
    at::Tensor positions = at::empty({batch.positions()}, at::kLong);
    std::copy(batch.batch->positions.begin(), batch.batch->positions.end(),
              positions.mutable_data_ptr<std::int64_t>());
    for (const std::int32_t position : batch.batch->positions) {
      ZINF_CHECK(position >= 0 && position < s_.max_length,
                 str("position ", position, " of at most ", s_.max_length));
    }
    return tape.add_rows(rows, weights("transformer.wpe.weight"), positions);
  }

  Settings s_;
};

void estimate_block(const Settings& s, const DropoutRates& dropout, StageSpec& stage) {
  const double hidden = static_cast<double>(s.hidden), inner = static_cast<double>(s.inner);
  stage.forward_flops_per_position = 2 * (4 * hidden * hidden + 2 * hidden * inner);
  stage.forward_flops_per_position_pair = 2 * hidden;
  const double saved = 7 * hidden + 2 * inner;
  stage.forward_workspace = {1e6, 4 * (5 * hidden + 2 * inner), 0};
  stage.backward_workspace = {2e6, 4 * (saved + 6 * hidden + 2 * inner), 0};
  stage.kept = {64 * 32, 4 * (saved + static_cast<double>(s.heads) + 4), 0};
  estimate_dropout(dropout, s.heads, stage);
}

int add_layers(ModelSpec& spec, const Settings& s, int flow) {
  for (std::int64_t layer = 0; layer < s.layers; ++layer) {
    StageSpec block = make_stage(str("layer ", layer), StageKind::kBlock, {}, {flow}, {});
    block.pieces = {add_piece(spec, str("h.", layer), layer_tensors(s, layer))};
    flow = add_activation(spec, str("hidden ", layer), s.hidden);
    block.outputs = {flow};
    estimate_block(s, spec.dropout, block);
    spec.stages.push_back(block);
  }
  return flow;
}

DropoutRates read_dropout(const JsonConfig& config) {
  return {dropout_rate(config, "embd_pdrop", 0.1), dropout_rate(config, "resid_pdrop", 0.1),
          dropout_rate(config, "attn_pdrop", 0.1)};
}

Model build(const JsonConfig& config, std::optional<double> dropout) {
  const Settings s = read(config);
  Model model;
  ModelSpec& spec = model.spec;
  choose_dropout(model, read_dropout(config), dropout);
  spec.vocabulary = s.vocabulary;
  spec.max_length = s.max_length;
  const int table = add_piece(
      spec, "wte", {weight_tensor("transformer.wte.weight", {s.vocabulary, s.hidden}, s.init_std)},
      true);
  const int positions = add_piece(
      spec, "wpe", {weight_tensor("transformer.wpe.weight", {s.max_length, s.hidden}, s.init_std)});
  const int rows = add_activation(spec, "rows", s.hidden);
  const int embedded = add_activation(spec, "embedded", s.hidden);
  spec.stages.push_back(make_stage("wte", StageKind::kLookup, {table}, {}, {rows}));
  StageSpec embed = make_stage("embed", StageKind::kBlock, {positions}, {rows}, {embedded});
  embed.forward_workspace = {65536, 8.0 * static_cast<double>(s.hidden) + 16, 0};
  embed.backward_workspace = {65536, 12.0 * static_cast<double>(s.hidden) + 16, 0};
  spec.stages.push_back(embed);
  const int flow = add_layers(spec, s, embedded);
  StageSpec head = make_stage("head", StageKind::kHead, {}, {flow}, {});
  head.pieces = {add_piece(spec, "ln_f",
                           {norm_or_bias_tensor("transformer.ln_f.weight", s.hidden, 1),
                            norm_or_bias_tensor("transformer.ln_f.bias", s.hidden, 0)})};
  head.pieces.push_back(
      s.tied ? table
             : add_piece(spec, "lm_head",
                         {weight_tensor("lm_head.weight", {s.vocabulary, s.hidden}, s.init_std)}));
  head.table = 1;
  head.forward_flops_per_position =
      2.0 * static_cast<double>(s.vocabulary) * static_cast<double>(s.hidden);
  estimate_head(head, s.hidden, s.vocabulary);
  spec.stages.push_back(head);
  if (s.tied) model.rules.tied = {{"transformer.wte.weight", "lm_head.weight"}};
  model.rules.buffers = {"*.attn.bias", "*.attn.masked_bias"};
  model.rules.optional_prefix = "transformer.";  // folders saved from the bare model lack it
  model.functions = std::make_shared<Gpt2Functions>(s);
  return model;
}

}  // namespace

Family gpt2_family() { return {"gpt2", {"gpt2"}, &build}; }

}  // namespace zinf::model
