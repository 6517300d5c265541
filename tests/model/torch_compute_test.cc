// The contract of compute.h: same bits however a step is driven, exact overwriting, hard workspace.
#include "engine/model/torch_compute.h"

#include <gtest/gtest.h>

#include <cstring>

#include "engine/base/error.h"
#include "engine/model/torch_runtime.h"
#include "tests/model/in_memory_model.h"
#include "tests/model/small_models.h"

namespace zinf::model {
namespace {

struct Outcome {
  std::vector<std::vector<float>> gradients;
  std::vector<double> losses;
  bool operator==(const Outcome& other) const {
    if (losses != other.losses || gradients.size() != other.gradients.size()) return false;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i].size() != other.gradients[i].size()) return false;
      if (std::memcmp(gradients[i].data(), other.gradients[i].data(), gradients[i].size() * 4) != 0)
        return false;
    }
    return true;
  }
};

Model model_of(const std::string& text, DType type, const std::vector<std::string>& freeze = {}) {
  return load_model(config_of(text), {type, freeze});
}

Outcome outcome_of(const std::string& text, DType type, const TwinOptions& options,
                   const data::StepBatch& step, const std::vector<std::string>& freeze = {}) {
  const auto source = random_weights(7);
  InMemoryModel twin(model_of(text, type, freeze), *source, options);
  twin.step(step);
  Outcome outcome;
  for (const Buffer& gradient : twin.gradients()) {
    outcome.gradients.emplace_back(gradient.floats(), gradient.floats() + gradient.size() / 4);
  }
  outcome.losses = twin.loss_sums();
  return outcome;
}

std::string mlp_text() { return R"({"model_type": "mlp", "d": 24, "layers": 3})"; }

data::StepBatch mlp_step() {
  std::vector<data::MicroBatch> batches;
  for (int m = 0; m < 3; ++m) {
    data::MicroBatch batch;
    batch.rows = 4;
    batch.length = 1;
    batch.tokens = batch.target_tokens = 4;
    for (int i = 0; i < 4 * 24; ++i)
      batch.features.push_back(static_cast<float>(random_normal(m, i)));
    for (int i = 0; i < 4; ++i)
      batch.labels.push_back(static_cast<float>(random_normal(100 + m, i)));
    batches.push_back(batch);
  }
  return step_of(std::move(batches));
}

struct Case {
  const char* name;
  std::string text;
  data::StepBatch step;
  DType type;
  Bf16Math math = Bf16Math::kAuto;
};

std::vector<Case> cases() {
  const std::string qwen3 = [] {
    std::string text = llama_text(R"(, "head_dim": 8, "tie_word_embeddings": true)");
    return text.replace(text.find("llama"), 5, "qwen3");
  }();
  return {{"llama", llama_text(), mixed_step(), DType::kFloat32},
          {"gpt2", gpt2_text(), mixed_step(), DType::kFloat32},
          {"mlp", mlp_text(), mlp_step(), DType::kFloat32},
          {"qwen3_bf16", qwen3, mixed_step(), DType::kBFloat16, Bf16Math::kFloat32},
          {"gpt2_bf16", gpt2_text(), mixed_step(), DType::kBFloat16, Bf16Math::kFloat32},
          {"gpt2_bf16_native", gpt2_text(), mixed_step(), DType::kBFloat16, Bf16Math::kNative},
          {"qwen3_fp16", qwen3, mixed_step(), DType::kFloat16}};
}

TwinOptions with(void (*change)(TwinOptions&)) {
  TwinOptions options;
  change(options);
  return options;
}

class SameBits : public testing::TestWithParam<Case> {
 protected:
  Outcome run(TwinOptions options) const {
    options.compute.bf16_math = GetParam().math;
    return outcome_of(GetParam().text, GetParam().type, options, GetParam().step);
  }
};

TEST_P(SameBits, HoweverTheStepIsDriven) {
  const Outcome usual = run({});
  for (const double loss : usual.losses) EXPECT_TRUE(std::isfinite(loss));
  for (const auto& gradient : usual.gradients) {
    for (const float value : gradient)
      ASSERT_TRUE(std::isfinite(value));  // gaps and padding are zeroed, too
  }
  EXPECT_TRUE(usual == run({})) << "again";
  EXPECT_TRUE(usual == run(with([](TwinOptions& o) { o.layer_major = true; }))) << "layer by layer";
  EXPECT_TRUE(usual == run(with([](TwinOptions& o) { o.gradient_in_place = false; })))
      << "gradients apart from values";
  EXPECT_TRUE(usual == run(with([](TwinOptions& o) { o.workspace = std::size_t{5} << 20; })))
      << "a smaller workspace";
}

TEST_P(SameBits, RecomputedOrKept) {
  EXPECT_TRUE(run({}) == run(with([](TwinOptions& o) { o.keep = true; })));
}

INSTANTIATE_TEST_SUITE_P(All, SameBits, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST(TorchCompute, PaddingAndGapsOfGradientsAreZero) {
  const auto source = random_weights(7);
  InMemoryModel twin(model_of(llama_text(), DType::kFloat32), *source);
  twin.step(mixed_step());
  for (std::size_t piece = 0; piece < twin.spec().pieces.size(); ++piece) {
    std::vector<bool> used(twin.spec().pieces[piece].elements, false);
    for (const TensorSpec& tensor : twin.spec().pieces[piece].tensors) {
      std::fill_n(used.begin() + tensor.offset, tensor.elements, true);
    }
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (used[i]) continue;
      ASSERT_EQ(twin.gradients()[piece].floats()[i], 0) << piece << " " << i;
    }
  }
}

TEST(TorchCompute, LossDoesNotDependOnHowTheStepIsSplit) {
  data::StepBatch split = mixed_step();
  split.micro_batches.resize(1);
  split.target_tokens = split.micro_batches[0].target_tokens;
  const data::StepBatch whole = split;
  const data::StepBatch rows = step_of(
      {packed_batch(16, {{random_document(16, 1)}}), packed_batch(16, {{random_document(16, 2)}})});
  const Outcome one = outcome_of(llama_text(), DType::kFloat32, {}, whole);
  const Outcome two = outcome_of(llama_text(), DType::kFloat32, {}, rows);
  EXPECT_NEAR(one.losses[0], two.losses[0] + two.losses[1], 1e-4);
  for (std::size_t i = 0; i < one.gradients.size(); ++i) {
    for (std::size_t j = 0; j < one.gradients[i].size(); ++j)
      ASSERT_NEAR(one.gradients[i][j], two.gradients[i][j], 1e-5);
  }
}

TEST(TorchCompute, FrozenTensorsChangeNoOtherGradient) {
  const std::vector<std::string> freeze = {
      "model.layers.0.*", "model.layers.1.self_attn.q_proj.weight", "*norm.weight"};
  const auto source = random_weights(7);
  InMemoryModel all(model_of(llama_text(), DType::kFloat32), *source);
  InMemoryModel some(model_of(llama_text(), DType::kFloat32, freeze), *source);
  for (InMemoryModel* twin : {&all, &some}) twin->step(mixed_step());
  EXPECT_EQ(all.loss_sums(), some.loss_sums());
  int frozen = 0, trained = 0;
  for (const PieceSpec& piece : some.spec().pieces) {
    for (const TensorSpec& tensor : piece.tensors) {
      if (!piece.trainable) {
        ++frozen;
        continue;
      }
      ++trained;
      EXPECT_EQ(
          std::memcmp(all.gradient(tensor.name), some.gradient(tensor.name), tensor.elements * 4),
          0)
          << tensor.name;
    }
  }
  EXPECT_GT(frozen, 9);
  EXPECT_GT(trained, 5);
}

TEST(TorchCompute, TooSmallAWorkspaceIsAnErrorWithNumbersAndNothingIsLost) {
  const auto source = random_weights(7);
  TwinOptions options;
  options.workspace = 20000;
  InMemoryModel twin(model_of(gpt2_text(), DType::kFloat32), *source, options);
  for (int attempt = 0; attempt < 2;
       ++attempt) {  // the second call finds everything as the first did
    try {
      twin.step(mixed_step());
      FAIL() << "fitted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kFailed);
      EXPECT_NE(std::string(error.what()).find("compute workspace: needed"), std::string::npos)
          << error.what();
      EXPECT_NE(std::string(error.what()).find("19.5 KiB"), std::string::npos) << error.what();
    }
  }
}

// The estimate serves plans for other machines: never below what is used, and not far above it.
TEST(TorchCompute, WorkspaceEstimatesHold) {
  const std::string big =
      R"({"model_type": "gpt2", "vocab_size": 20000, "n_embd": 256, "n_layer": 1, "n_head": 4, "n_positions": 256})";
  const std::string llama =
      R"({"model_type": "llama", "vocab_size": 20000, "hidden_size": 256, "intermediate_size": 700,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256})";
  for (const std::string& text : {big, llama}) {
    for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
      const auto source = random_weights(7);
      TwinOptions options;
      options.workspace = std::size_t{256} << 20;
      options.compute.bf16_math = Bf16Math::kAuto;
      InMemoryModel twin(model_of(text, type), *source, options);
      const data::StepBatch step = step_of({packed_batch(
          256, {{random_document(256, 1, 20000)}, {random_document(256, 2, 20000)}})});
      twin.step(step);
      twin.evaluate(step);  // with the head's forward
      for (std::size_t i = 1; i < twin.spec().stages.size(); ++i) {
        const StageSpec& stage = twin.spec().stages[i];
        const Bytes backward = stage.backward_workspace.bytes(2, 256),
                    forward = stage.forward_workspace.bytes(2, 256);
        EXPECT_LE(twin.backward_peak(static_cast<int>(i)), backward) << stage.name;
        EXPECT_GE(2 * twin.backward_peak(static_cast<int>(i)) + (4 << 20), backward) << stage.name;
        EXPECT_LE(twin.forward_peak(static_cast<int>(i)), forward) << stage.name;
        EXPECT_GE(2 * twin.forward_peak(static_cast<int>(i)) + (4 << 20), forward) << stage.name;
      }
    }
  }
}

TEST(TorchCompute, NextTokenIsTheLikeliest) {
  const auto source = random_weights(7);
  InMemoryModel twin(model_of(llama_text(), DType::kFloat32), *source);
  const data::StepBatch step = step_of({packed_batch(16, {{random_document(9, 5)}})});
  twin.evaluate(step);
  const std::int32_t chosen = twin.next_token(0);
  double best = 1e9;
  std::int32_t likeliest = -1;
  for (std::int32_t id = 0; id < 61; ++id) {
    data::StepBatch asked = step;
    asked.micro_batches[0].targets.assign(16, data::kIgnore);
    asked.micro_batches[0].targets[8] = id;
    const double loss = twin.evaluate_head(asked, 0);
    if (loss < best) {
      best = loss;
      likeliest = id;
    }
  }
  EXPECT_EQ(chosen, likeliest);
}

TEST(TorchCompute, MicroBatchWithoutTargetsGivesZeroes) {
  data::StepBatch step = mixed_step();
  step.target_tokens -= step.micro_batches[1].target_tokens;
  step.micro_batches[1].target_tokens = 0;
  step.micro_batches[1].targets.assign(32, data::kIgnore);
  data::StepBatch without = step;
  without.micro_batches.erase(without.micro_batches.begin() + 1);
  const Outcome with = outcome_of(llama_text(), DType::kFloat32, {}, step);
  EXPECT_EQ(with.losses[1], 0);
  const Outcome expected = outcome_of(llama_text(), DType::kFloat32, {}, without);
  for (std::size_t i = 0; i < with.gradients.size(); ++i)
    EXPECT_EQ(with.gradients[i], expected.gradients[i]);
}

}  // namespace
}  // namespace zinf::model
