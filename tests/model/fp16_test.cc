// fp16 models: weights, stage results and their gradients rounded to fp16, which overflows.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/model/float_convert.h"
#include "tests/model/in_memory_model.h"
#include "tests/model/small_models.h"

namespace zinf::model {
namespace {

// All gradients of a step, divided by the loss scale.
std::vector<double> gradients_at(DType type, double loss_scale, const std::string& text,
                                 bool keep = false) {
  TwinOptions options;
  options.loss_scale = loss_scale;
  options.keep = keep;
  InMemoryModel twin(load_model(config_of(text), {type, {}}), *random_weights(7), options);
  twin.step(mixed_step());
  std::vector<double> all;
  for (const PieceSpec& piece : twin.spec().pieces) {
    for (const TensorSpec& tensor : piece.tensors) {
      const float* gradient = twin.gradient(tensor.name);
      for (std::int64_t i = 0; i < tensor.elements; ++i) all.push_back(gradient[i] / loss_scale);
    }
  }
  return all;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

double size_of_all(const std::vector<double>& a) {
  return distance(a, std::vector<double>(a.size(), 0.0));
}

TEST(Fp16, GradientsComeCloseAndTheScaleSavesTheSmallOnes) {
  for (const std::string& text : {llama_text(), gpt2_text()}) {
    const std::vector<double> exact = gradients_at(DType::kFloat32, 1, text);
    const double size = size_of_all(exact);
    const double scaled = distance(gradients_at(DType::kFloat16, 4096, text), exact);
    EXPECT_LT(scaled, 3e-3 * size);
    // Without it small gradients of stage results fall below fp16's least numbers.
    EXPECT_GT(distance(gradients_at(DType::kFloat16, 1.0 / 65536, text), exact), 4 * scaled);
    // bf16 has three bits less.
    EXPECT_LT(2 * scaled, distance(gradients_at(DType::kBFloat16, 1, text), exact));
  }
}

TEST(Fp16, ALargeScaleOverflowsAndThatShows) {
  for (const bool keep : {false, true}) {
    bool finite = true;
    for (const double value : gradients_at(DType::kFloat16, 0x1p32, llama_text(), keep))
      finite = finite && std::isfinite(value);
    EXPECT_FALSE(finite);
    for (const double value : gradients_at(DType::kFloat32, 0x1p32, llama_text(), keep))
      ASSERT_TRUE(std::isfinite(value));
  }
}

}  // namespace
}  // namespace zinf::model
