// Llama and its relatives: RMS norm, rotary positions, grouped-query attention, gated MLP.
#include "engine/model/aten.h"

#include <cmath>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/model/family.h"
#include "engine/model/rope.h"
#include "engine/model/stage_functions.h"

namespace zinf::model {
namespace {

struct Settings {
  std::int64_t vocabulary, hidden, intermediate, layers, heads, kv_heads, head_width, max_length;
  double epsilon, init_std;
  bool q_bias, o_bias, mlp_bias, head_norms, tied;
  std::string activation;
  RopeSettings rope;
  std::vector<std::int64_t> windows;  // per layer; 0: none
};

[[noreturn]] void refuse(const std::string& what, const std::string& hint = "") {
  throw Error(ErrorKind::kUsage, what, hint);
}

void read_heads(const JsonConfig& config, const std::string& type, Settings& s) {
  s.heads = config.integer("num_attention_heads", 1, kMostWidth);
  const std::int64_t absent_kv = type == "mistral" ? std::min<std::int64_t>(8, s.heads) : s.heads;
  s.kv_heads = config.integer_or("num_key_value_heads", 1, kMostWidth, absent_kv);
  if (s.heads % s.kv_heads != 0) {
    refuse(str(config.where("num_key_value_heads"), ": ", s.heads, " attention heads cannot share ",
               s.kv_heads, " key/value heads"),
           "num_attention_heads must be a multiple of num_key_value_heads");
  }
  if (config.has("head_dim")) {
    s.head_width = config.integer("head_dim", 2, kMostWidth);
  } else if (type == "qwen3") {
    s.head_width = 128;
  } else {
    if (s.hidden % s.heads != 0) {
      refuse(str(config.where("hidden_size"), " is ", s.hidden, ", which ", s.heads,
                 " attention heads do not divide, and there is no head_dim"));
    }
    s.head_width = s.hidden / s.heads;
  }
  if (s.head_width % 2 != 0)
    refuse(
        str(config.where("head_dim"), ": rotary positions need even heads, found ", s.head_width));
  if (s.heads > kMostWidth / s.head_width) {
    refuse(str(config.where("head_dim"), ": ", s.heads, " heads of ", s.head_width,
               " are wider than ", kMostWidth));
  }
}

std::vector<std::int64_t> read_windows(const JsonConfig& config, const std::string& type,
                                       std::int64_t layers) {
  std::vector<std::int64_t> windows(layers, 0);
  const bool qwen = type == "qwen2" || type == "qwen3";
  if (type == "llama" || (qwen && !config.flag_or("use_sliding_window", false))) return windows;
  if (type == "mistral" && config.has("layer_types")) {
    refuse(str(config.where("layer_types"), ": a mistral with layer types is not implemented"));
  }
  // Only an absent key means the default; an explicit null means no window.
  const bool is_null = !config.has("sliding_window") && config.shown("sliding_window") == "null";
  if (is_null) return windows;
  const std::int64_t window = config.integer_or("sliding_window", 1, kMostLength, 4096);
  const std::int64_t first = qwen ? config.integer_or("max_window_layers", 0, kMostLayers, 28) : 0;
  for (std::int64_t layer = first; layer < layers; ++layer) windows[layer] = window;
  if (!config.has("layer_types")) return windows;
  const std::vector<std::string> types = config.texts("layer_types");
  if (static_cast<std::int64_t>(types.size()) != layers) {
    refuse(str(config.where("layer_types"), " has ", types.size(), " entries for ", layers,
               " layers"));
  }
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    if (types[layer] != "full_attention" && types[layer] != "sliding_attention") {
      refuse(str(config.where("layer_types"), ": \"", types[layer], "\" is not implemented"),
             "implemented: full_attention, sliding_attention");
    }
    windows[layer] = types[layer] == "sliding_attention" ? window : 0;
  }
  return windows;
}

Settings read(const JsonConfig& config) {
  const std::string type = config.text("model_type");
  Settings s;
  s.vocabulary = config.integer("vocab_size", 1, kMostVocabulary);
  s.hidden = config.integer("hidden_size", 1, kMostWidth);
  s.intermediate = config.integer("intermediate_size", 1, kMostWidth);
  s.layers = config.integer("num_hidden_layers", 1, kMostLayers);
  s.max_length = config.integer("max_position_embeddings", 1, kMostLength);
  read_heads(config, type, s);
  s.epsilon = config.number_or("rms_norm_eps", 0, 1, 1e-6);
  s.init_std = config.number_or("initializer_range", 0, 10, 0.02);
  const bool attention_bias =
      type != "mistral" && type != "qwen2" && config.flag_or("attention_bias", false);
  s.q_bias = type == "qwen2" || attention_bias;
  s.o_bias = attention_bias;
  s.mlp_bias = type == "llama" && config.flag_or("mlp_bias", false);
  s.head_norms = type == "qwen3";
  s.tied = config.flag_or("tie_word_embeddings", false);
  s.activation = config.text_or("hidden_act", "silu");
  check_activation(config, "hidden_act", s.activation);
  s.rope = read_rope(config, s.max_length, 10000);
  s.windows = read_windows(config, type, s.layers);
  return s;
}

std::string layer_prefix(std::int64_t layer) { return str("model.layers.", layer, "."); }

std::vector<TensorSpec> layer_tensors(const Settings& s, std::int64_t layer) {
  const std::string prefix = layer_prefix(layer);
  std::vector<TensorSpec> tensors;
  const auto matrix = [&](const char* name, std::int64_t out, std::int64_t in, bool bias) {
    tensors.push_back(weight_tensor(str(prefix, name, ".weight"), {out, in}, s.init_std));
    if (bias) tensors.push_back(norm_or_bias_tensor(str(prefix, name, ".bias"), out, 0));
  };
  const auto norm = [&](const char* name, std::int64_t width) {
    tensors.push_back(norm_or_bias_tensor(str(prefix, name, ".weight"), width, 1));
  };
  norm("input_layernorm", s.hidden);
  matrix("self_attn.q_proj", s.heads * s.head_width, s.hidden, s.q_bias);
  matrix("self_attn.k_proj", s.kv_heads * s.head_width, s.hidden, s.q_bias);
  matrix("self_attn.v_proj", s.kv_heads * s.head_width, s.hidden, s.q_bias);
  if (s.head_norms) norm("self_attn.q_norm", s.head_width);
  if (s.head_norms) norm("self_attn.k_norm", s.head_width);
  matrix("self_attn.o_proj", s.hidden, s.heads * s.head_width, s.o_bias);
  norm("post_attention_layernorm", s.hidden);
  matrix("mlp.gate_proj", s.intermediate, s.hidden, s.mlp_bias);
  matrix("mlp.up_proj", s.intermediate, s.hidden, s.mlp_bias);
  matrix("mlp.down_proj", s.hidden, s.intermediate, s.mlp_bias);
  return tensors;
}

class LlamaFunctions final : public StageFunctions {
 public:
  explicit LlamaFunctions(Settings settings) : s_(std::move(settings)) {}

  std::vector<Value> block(int stage, Tape& tape, StageWeights& weights,
                           const std::vector<Value>& inputs,
                           const BatchView& batch) const override {
    const std::string prefix = layer_prefix(stage - 1);
    const auto linear = [&](const char* name, const Value& x) {
      return tape.linear(x, weights(str(prefix, name, ".weight")),
                         weights.find(str(prefix, name, ".bias")));
    };
    const auto norm = [&](const char* name, const Value& x) {
      return tape.rms_norm(x, weights(str(prefix, name, ".weight")), s_.epsilon);
    };
    Value x = inputs.at(0);
    x = tape.add(
        x, linear("self_attn.o_proj",
                  attention(stage - 1, tape, norm("input_layernorm", x), linear, norm, batch)));
    const Value h = norm("post_attention_layernorm", x);
    const Value gate = tape.activation(linear("mlp.gate_proj", h), s_.activation);
    return {tape.add(x, linear("mlp.down_proj", tape.multiply(gate, linear("mlp.up_proj", h))))};
  }

  HeadResult head(Tape& tape, StageWeights& weights, const Value& input,
                  const BatchView&) const override {
    return {tape.rms_norm(input, weights("model.norm.weight"), s_.epsilon),
            s_.tied ? "model.embed_tokens.weight" : "lm_head.weight"};
  }

 private:
  template <typename Linear, typename Norm>
  Value attention(std::int64_t layer, Tape& tape, const Value& h, const Linear& linear,
                  const Norm& norm, const BatchView& batch) const {
    const auto [cosines, sines] =
        rope_table(rope_frequencies(s_.rope, s_.head_width), s_.rope, batch);
    Value q = linear("self_attn.q_proj", h);
    Value k = linear("self_attn.k_proj", h);
    const Value v = linear("self_attn.v_proj", h);
    if (s_.head_norms) {
      q = norm("self_attn.q_norm", q);
      k = norm("self_attn.k_norm", k);
    }
    q = tape.rotate(q, s_.heads, cosines, sines);
    k = tape.rotate(k, s_.kv_heads, cosines, sines);
    const Tape::Heads heads{s_.heads, s_.kv_heads, s_.head_width, s_.windows[layer],
                            1 / std::sqrt(static_cast<double>(s_.head_width))};
    return tape.attention(q, k, v, heads, batch);
  }

  Settings s_;
};

void estimate_block(const Settings& s, const DropoutRates& dropout, std::int64_t layer,
                    StageSpec& stage) {
  const double q = static_cast<double>(s.heads * s.head_width),
               kv = static_cast<double>(s.kv_heads * s.head_width);
  const double hidden = static_cast<double>(s.hidden), mlp = static_cast<double>(s.intermediate);
  const double matrices = hidden * (2 * q + 2 * kv) + 3 * hidden * mlp;
  stage.forward_flops_per_position = 2 * matrices;
  stage.forward_flops_per_position_pair = 2 * q;  // two products, half of the pairs by causality
  const double saved = 3 * hidden + 2 * q + 2 * kv + 3 * mlp;  // elements per position
  stage.forward_workspace = {1e6, 4 * (3 * hidden + 3 * mlp + 2 * q + 2 * kv), 0};
  stage.backward_workspace = {2e6, 4 * (saved + 3 * hidden + 3 * mlp + 2 * q + 2 * kv), 0};
  // Masks of a window's blocks, where sequences are longer than it.
  const double masks =
      s.windows[layer] < s.max_length ? 12.0 * static_cast<double>(s.windows[layer]) : 0;
  stage.forward_workspace.per_position += masks;
  stage.backward_workspace.per_position += masks;
  stage.kept = {64 * 32, 4 * (saved + static_cast<double>(s.heads) + 2), 0};
  estimate_dropout(dropout, s.heads, stage);
}

Model build(const JsonConfig& config, std::optional<double> dropout) {
  const Settings s = read(config);
  Model model;
  ModelSpec& spec = model.spec;
  choose_dropout(model, {-1, -1, dropout_rate(config, "attention_dropout", 0)}, dropout);
  spec.vocabulary = s.vocabulary;
  spec.max_length = s.max_length;
  const int table = add_piece(
      spec, "embed_tokens",
      {weight_tensor("model.embed_tokens.weight", {s.vocabulary, s.hidden}, s.init_std)}, true);
  StageSpec lookup = make_stage("embed_tokens", StageKind::kLookup, {table}, {}, {});
  int flow = add_activation(spec, "rows", s.hidden);
  lookup.outputs = {flow};
  spec.stages.push_back(lookup);
  for (std::int64_t layer = 0; layer < s.layers; ++layer) {
    StageSpec block = make_stage(str("layer ", layer), StageKind::kBlock, {}, {flow}, {});
    block.pieces = {add_piece(spec, str("layers.", layer), layer_tensors(s, layer))};
    flow = add_activation(spec, str("hidden ", layer), s.hidden);
    block.outputs = {flow};
    estimate_block(s, spec.dropout, layer, block);
    spec.stages.push_back(block);
  }
  StageSpec head = make_stage("head", StageKind::kHead, {}, {flow}, {});
  head.pieces = {add_piece(spec, "norm", {norm_or_bias_tensor("model.norm.weight", s.hidden, 1)})};
  head.pieces.push_back(
      s.tied ? table
             : add_piece(spec, "lm_head",
                         {weight_tensor("lm_head.weight", {s.vocabulary, s.hidden}, s.init_std)}));
  head.table = 1;
  head.forward_flops_per_position =
      2.0 * static_cast<double>(s.vocabulary) * static_cast<double>(s.hidden);
  estimate_head(head, s.hidden, s.vocabulary);
  spec.stages.push_back(head);
  if (s.tied) model.rules.tied = {{"model.embed_tokens.weight", "lm_head.weight"}};
  model.rules.buffers = {"*.rotary_emb.inv_freq"};
  model.rules.optional_prefix = "model.";  // folders saved from the bare model lack it
  model.functions = std::make_shared<LlamaFunctions>(s);
  return model;
}

}  // namespace

Family llama_family() { return {"llama", {"llama", "mistral", "qwen2", "qwen3"}, &build}; }

}  // namespace zinf::model
