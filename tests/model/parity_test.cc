// Losses and every gradient beside PyTorch's, on tiny random checkpoints that transformers wrote.
// Our fp32 error against an fp64 reference may be at most twice PyTorch's own.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "engine/base/str.h"
#include "engine/model/hf_folder.h"
#include "engine/model/safetensors.h"
#include "tests/model/in_memory_model.h"

namespace zinf::model {
namespace {

namespace fs = std::filesystem;

std::vector<std::int32_t> read_ints(const SafetensorsFile& file, const std::string& name) {
  const SafeTensor& tensor = *file.find(name);
  std::vector<std::int32_t> values(tensor.elements);
  file.read(tensor, 0, tensor.elements, values.data());
  return values;
}

std::vector<double> read_numbers(const SafetensorsFile& file, const std::string& name) {
  const SafeTensor* tensor = file.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  std::vector<double> values(tensor->elements);
  if (tensor->type == SafeType::kF64) {
    file.read(*tensor, 0, tensor->elements, values.data());
  } else {
    std::vector<float> floats(tensor->elements);
    file.read(*tensor, 0, tensor->elements, floats.data());
    std::copy(floats.begin(), floats.end(), values.begin());
  }
  return values;
}

data::StepBatch read_batch(const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  data::StepBatch step;
  for (int m = 0; file.find(str("m", m, ".ids")) != nullptr; ++m) {
    data::MicroBatch batch;
    batch.rows = static_cast<int>(file.find(str("m", m, ".ids"))->shape[0]);
    batch.length = static_cast<int>(file.find(str("m", m, ".ids"))->shape[1]);
    batch.ids = read_ints(file, str("m", m, ".ids"));
    batch.targets = read_ints(file, str("m", m, ".targets"));
    batch.positions = read_ints(file, str("m", m, ".positions"));
    batch.documents = read_ints(file, str("m", m, ".documents"));
    for (const std::int32_t target : batch.targets) batch.target_tokens += target != data::kIgnore;
    step.target_tokens += batch.target_tokens;
    step.micro_batches.push_back(std::move(batch));
  }
  return step;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

double norm(const std::vector<double>& a) {
  return distance(a, std::vector<double>(a.size(), 0.0));
}

// Softmax does not see a constant added to every key's score, so k biases have no gradient but
// rounding noise.
bool is_zero_in_theory(const std::string& name) { return name.ends_with("k_proj.bias"); }

// In GPT-2 the same holds for the k part of the fused bias: compare the other two thirds.
void drop_zero_part(const std::string& name, std::vector<double>& values) {
  if (!name.ends_with("attn.c_attn.bias")) return;
  const auto third = static_cast<std::ptrdiff_t>(values.size() / 3);
  values.erase(values.begin() + third, values.begin() + 2 * third);
}

class Parity : public testing::Test {
 protected:
  // Once for all cases: writes the checkpoints.
  static void SetUpTestSuite() {
    const char* chosen = std::getenv("ZINF_TEST_PYTHON");
    python_ = chosen != nullptr ? chosen : ".venv-test/bin/python";
    if (!fs::exists(python_)) return;
    if (const char* ready = std::getenv("ZINF_PARITY_FOLDER")) {
      folder_ = ready;
      return;
    }
    folder_ = (fs::temp_directory_path() / str("zinf-parity-", getpid())).string();
    fs::create_directories(folder_);
    const std::string command = str("'", python_, "' tests/model/parity_reference.py '", folder_,
                                    "' > '", folder_, "/log' 2>&1");
    ASSERT_EQ(std::system(command.c_str()), 0) << "see " << folder_ << "/log";
  }
  static void TearDownTestSuite() {
    if (std::getenv("ZINF_PARITY_FOLDER") == nullptr && !folder_.empty()) fs::remove_all(folder_);
  }
  void SetUp() override {
    if (folder_.empty())
      GTEST_SKIP() << "no Python with transformers: " << python_ << " (ZINF_TEST_PYTHON)";
  }

  static std::string python_, folder_;
};
std::string Parity::python_, Parity::folder_;

void compare_losses(InMemoryModel& twin, const data::StepBatch& step,
                    const SafetensorsFile& reference) {
  // Token losses one by one: each is a logit against all others.
  twin.evaluate(step);
  for (std::size_t m = 0; m < step.micro_batches.size(); ++m) {
    const std::vector<double> exact = read_numbers(reference, str("loss64.m", m));
    const std::vector<double> theirs = read_numbers(reference, str("loss32.m", m));
    std::vector<double> ours(exact.size(), 0.0);
    data::StepBatch one = step;
    const std::vector<std::int32_t>& targets = step.micro_batches[m].targets;
    for (std::size_t i = 0; i < targets.size(); ++i) {
      if (targets[i] == data::kIgnore) continue;
      one.micro_batches[m].targets.assign(targets.size(), data::kIgnore);
      one.micro_batches[m].targets[i] = targets[i];
      ours[i] = twin.evaluate_head(one, static_cast<int>(m));
    }
    EXPECT_LE(distance(ours, exact), 2 * distance(theirs, exact) + 1e-7 * norm(exact))
        << "micro-batch " << m;
  }
}

void compare_case(const std::string& folder, TwinOptions options) {
  const HfFolder hf = HfFolder::open(folder);
  ModelOptions as_configured;
  as_configured.dropout = std::nullopt;
  Model model = load_model(hf.config(), as_configured);
  EXPECT_EQ(model.spec.dropout.any(), folder.find("dropout") != std::string::npos);
  options.dropout_key = dropout_step_key(7, 3);  // as in parity_reference.py
  const TensorMap map = check_tensors(model.spec, hf, model.rules);
  const auto source = folder_weights(hf, map);
  InMemoryModel twin(std::move(model), *source, options);
  const data::StepBatch step = read_batch(folder + "/batch.st");
  const SafetensorsFile reference = SafetensorsFile::open(folder + "/reference.st");
  compare_losses(twin, step, reference);

  twin.step(step);
  std::set<std::string> compared;
  for (const PieceSpec& piece : twin.spec().pieces) {
    for (const TensorSpec& tensor : piece.tensors) {
      if (is_zero_in_theory(tensor.name)) continue;
      std::vector<double> exact = read_numbers(reference, "g64." + tensor.name);
      std::vector<double> theirs = read_numbers(reference, "g32." + tensor.name);
      const float* gradient = twin.gradient(tensor.name);
      std::vector<double> ours(gradient, gradient + tensor.elements);
      for (auto* values : {&exact, &theirs, &ours}) drop_zero_part(tensor.name, *values);
      ASSERT_EQ(exact.size(), ours.size()) << tensor.name;
      EXPECT_LE(distance(ours, exact), 2 * distance(theirs, exact))
          << tensor.name << ", of norm " << norm(exact) << ", ours/theirs "
          << distance(ours, exact) / distance(theirs, exact);
      compared.insert(tensor.name);
    }
  }
  EXPECT_GT(compared.size(), 10u);
}

class ParityCase : public Parity, public testing::WithParamInterface<const char*> {};

TEST_P(ParityCase, LossesAndGradients) { compare_case(folder_ + "/" + GetParam(), {}); }

TEST_P(ParityCase, LossesAndGradientsFromKeptActivations) {
  TwinOptions options;
  options.keep = true;
  compare_case(folder_ + "/" + GetParam(), options);
}

INSTANTIATE_TEST_SUITE_P(All, ParityCase,
                         testing::Values("llama", "llama_tied", "llama_biases", "llama_head_dim",
                                         "llama_heads_5_5", "llama_heads_5_1", "llama_heads_9_3",
                                         "llama_gelu", "rope_linear", "rope_dynamic", "rope_llama3",
                                         "rope_yarn", "mistral_window", "qwen2", "qwen2_window",
                                         "qwen3", "gpt2", "gpt2_scales", "dropout_gpt2",
                                         "dropout_llama", "dropout_window"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace zinf::model
