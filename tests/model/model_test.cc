// config.json to spec: shapes, refusals (field cases BR-071 to BR-074).
#include "engine/model/model.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "tests/model/in_memory_model.h"
#include "tests/model/small_models.h"

namespace zinf::model {
namespace {

std::vector<std::int64_t> shape_of(const ModelSpec& spec, const std::string& name) {
  for (const PieceSpec& piece : spec.pieces) {
    for (const TensorSpec& tensor : piece.tensors) {
      if (tensor.name == name) return tensor.shape;
    }
  }
  return {};
}

void expect_refused(const std::string& text, const std::vector<std::string>& words) {
  try {
    load_model(config_of(text));
    FAIL() << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    for (const std::string& word : words)
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

std::string as(const std::string& family, std::string text) {
  return text.replace(text.find("llama"), 5, family);
}

TEST(Model, ExplicitHeadWidthWins) {
  const ModelSpec spec = load_model(config_of(llama_text(R"(, "head_dim": 16)", "40"))).spec;
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(shape_of(spec, "model.layers.1.self_attn.q_proj.weight"), (Shape{64, 40}));
  EXPECT_EQ(shape_of(spec, "model.layers.1.self_attn.k_proj.weight"), (Shape{32, 40}));
  EXPECT_EQ(shape_of(spec, "model.layers.1.self_attn.v_proj.weight"), (Shape{32, 40}));
  EXPECT_EQ(shape_of(spec, "model.layers.1.self_attn.o_proj.weight"), (Shape{40, 64}));
  expect_refused(llama_text("", "42"), {"hidden_size", "42", "4 attention heads"});
  expect_refused(llama_text(R"(, "head_dim": 5)"), {"even heads"});
}

TEST(Model, HeadCountsMustDivide) {
  std::string text = llama_text();
  text.replace(text.find("\"num_attention_heads\": 4"), 24,
               "\"num_attention_heads\": 10, \"head_dim\": 8");
  text.replace(text.find("\"num_key_value_heads\": 2"), 24, "\"num_key_value_heads\": 4");
  expect_refused(text, {"num_key_value_heads", "10", "4"});
  text.replace(text.find("\"num_key_value_heads\": 4"), 24, "\"num_key_value_heads\": 0");
  expect_refused(text, {"num_key_value_heads"});
}

TEST(Model, MissingKvCountMeansAsManyAsHeads) {
  std::string text = llama_text();
  text.replace(text.find("\"num_key_value_heads\": 2,"), 25, "");
  EXPECT_EQ(shape_of(load_model(config_of(text)).spec, "model.layers.0.self_attn.k_proj.weight")[0],
            48);
}

TEST(Model, BiasesFollowTheFamily) {
  const auto biases = [](const std::string& text) {
    int count = 0;
    for (const std::string& name : tensor_names(load_model(config_of(text)).spec))
      count += name.ends_with(".bias");
    return count;
  };
  EXPECT_EQ(biases(llama_text()), 0);
  EXPECT_EQ(biases(llama_text(R"(, "attention_bias": true)")), 8);
  EXPECT_EQ(biases(llama_text(R"(, "mlp_bias": true)")), 6);
  EXPECT_EQ(biases(as("qwen2", llama_text())), 6);
  EXPECT_EQ(biases(as("mistral", llama_text())), 0);
  EXPECT_EQ(biases(gpt2_text()), 2 * 6 + 1);
}

TEST(Model, TiedTableIsOnePiece) {
  const Model tied = load_model(config_of(llama_text(R"(, "tie_word_embeddings": true)")));
  const Model untied = load_model(config_of(llama_text()));
  EXPECT_EQ(untied.spec.parameters() - tied.spec.parameters(), 61 * 48);
  ASSERT_EQ(tied.rules.tied.size(), 1u);
  EXPECT_EQ(tied.rules.tied[0].alias, "lm_head.weight");
  EXPECT_EQ(tied.spec.stages.front().pieces[0], tied.spec.stages.back().pieces[1]);
  EXPECT_TRUE(untied.rules.tied.empty());
}

TEST(Model, RopeScalingIsNeverIgnored) {
  expect_refused(llama_text(R"(, "rope_scaling": {"type": "longrope", "factor": 2})"),
                 {"longrope", "not implemented", "yarn"});
  expect_refused(llama_text(R"(, "rope_scaling": {"rope_type": "linear"})"), {"factor"});
  expect_refused(
      llama_text(R"(, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5})"),
      {"partial_rotary_factor"});
  expect_refused(llama_text(R"(, "partial_rotary_factor": 0.5)"), {"partial_rotary_factor"});
  expect_refused(llama_text(R"(, "rope_scaling": {"factor": 8})"),
                 {"factor", "default", "rope_type"});
  expect_refused(
      llama_text(
          R"(, "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8}})"),
      {"full_attention", "rope_type"});
  expect_refused(
      llama_text(
          R"(, "rope_scaling": {"rope_type": "linear", "factor": 8}, "rope_parameters": {"rope_theta": 10000})"),
      {"rope_scaling", "rope_parameters", "one of them"});
  expect_refused(
      llama_text(
          R"(, "rope_theta": 1, "rope_scaling": {"type": "yarn", "factor": 2, "original_max_position_embeddings": 8})"),
      {"yarn", "rope_theta above 1"});
  for (
      const char* same :
      {R"(, "rope_scaling": null)", R"(, "rope_scaling": {"type": "default"})",
       R"(, "rope_parameters": {"rope_type": "default", "rope_theta": 10000})",
       R"(, "rope_theta": 10000.0, "partial_rotary_factor": 1.0)",
       R"(, "rope_scaling": {"rope_type": "default", "factor": 1.0})",
       R"(, "rope_parameters": {"type": "default", "rope_theta": 10000}, "rope_scaling": {"rope_type": "default"})"}) {
    const auto source = random_weights(1);
    InMemoryModel twin(load_model(config_of(llama_text(same))), *source);
    InMemoryModel plain(load_model(config_of(llama_text())), *source);
    EXPECT_EQ(twin.evaluate(mixed_step()), plain.evaluate(mixed_step())) << same;
  }
}

TEST(Model, LinearRopeHalvesPositions) {
  const auto source = random_weights(1);
  InMemoryModel plain(load_model(config_of(llama_text())), *source);
  for (const char* key : {"type", "rope_type"}) {
    InMemoryModel scaled(load_model(config_of(llama_text(str(R"(, "rope_scaling": {")", key,
                                                             R"(": "linear", "factor": 2.0})")))),
                         *source);
    data::StepBatch doubled = mixed_step();
    for (data::MicroBatch& batch : doubled.micro_batches) {
      for (std::int32_t& position : batch.positions) position *= 2;
    }
    const std::vector<double> expected = plain.evaluate(mixed_step());
    const std::vector<double> got = scaled.evaluate(doubled),
                              undoubled = scaled.evaluate(mixed_step());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i], expected[i], 1e-4);
      EXPECT_GT(std::abs(undoubled[i] - expected[i]), 1e-3);
    }
  }
}

TEST(Model, HostileNumbersAreRefused) {
  std::string text = llama_text();
  text.replace(text.find("\"vocab_size\": 61"), 16, "\"vocab_size\": 9223372036854775807");
  expect_refused(text, {"vocab_size"});
  expect_refused(llama_text("", "-1"), {"hidden_size"});
  expect_refused(llama_text("", "1e300"), {"hidden_size"});
  expect_refused(llama_text(R"(, "hidden_act": "mish")"), {"mish", "silu"});
  expect_refused(llama_text(R"(, "quantization_config": {"bits": 4})"), {"quantised"});
  expect_refused(as("mamba", llama_text()), {"mamba", "gpt2, llama"});
  expect_refused(gpt2_text(R"(, "add_cross_attention": true)"), {"cross"});
  expect_refused(
      as("qwen3", llama_text(R"(, "use_sliding_window": true, "layer_types": ["full_attention"])")),
      {"layer_types", "1 entries", "2 layers"});
}

TEST(Model, Dropout) {
  const JsonConfig gpt2 = config_of(gpt2_text(R"(, "attn_pdrop": 0.3, "resid_pdrop": 0)"));
  const auto rates_of = [](const JsonConfig& config, std::optional<double> dropout) {
    ModelOptions options;
    options.dropout = dropout;
    const DropoutRates rates = load_model(config, options).spec.dropout;
    return std::vector{rates.embedding, rates.residual, rates.attention};
  };
  EXPECT_EQ(load_model(gpt2).config_dropout, 0.3);
  EXPECT_EQ(load_model(config_of(llama_text())).config_dropout, 0);
  EXPECT_EQ(rates_of(gpt2, 0.0), (std::vector{0.0, 0.0, 0.0}));
  EXPECT_EQ(rates_of(gpt2, std::nullopt), (std::vector{0.1, 0.0, 0.3}));
  EXPECT_EQ(rates_of(gpt2, 0.2), (std::vector{0.2, 0.2, 0.2}));
  // The Llama family drops weights of attention and nothing else.
  const JsonConfig llama = config_of(llama_text(R"(, "attention_dropout": 0.4)"));
  EXPECT_EQ(rates_of(llama, std::nullopt), (std::vector{0.0, 0.0, 0.4}));
  EXPECT_EQ(rates_of(llama, 0.2), (std::vector{0.0, 0.0, 0.2}));
  const JsonConfig mlp = config_of(R"({"model_type": "mlp", "d": 4, "layers": 1})");
  EXPECT_EQ(rates_of(mlp, std::nullopt), (std::vector{0.0, 0.0, 0.0}));
  EXPECT_THROW(rates_of(mlp, 0.1), Error);
  expect_refused(gpt2_text(R"(, "attn_pdrop": 1)"), {"attn_pdrop", "below 1"});
}

}  // namespace
}  // namespace zinf::model
