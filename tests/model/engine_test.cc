// zinf::Engine where stages do not use all of their weights in every step.
#include "engine/train/engine.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "engine/model/custom_model.h"

namespace zinf {
namespace {

constexpr std::int64_t kWidth = 8, kRow = 300;  // a row is longer than a quantum

// A stage with one weight that is always used, one in batches that begin with a positive number,
// and one that never is. The loss adds the second's sum, whose gradient is therefore a constant.
model::CustomModel sometimes_model() {
  const auto linear = [](const at::Tensor& x, const model::Weights& w) {
    return at::linear(x, w["always"]);
  };
  const auto loss_sum = [](const at::Tensor& x, const model::Weights& w, const at::Tensor& labels) {
    at::Tensor loss = (at::linear(x, w["out"]).squeeze(1) - labels).square().sum();
    if (labels[0].item<float>() > 0) loss = loss + 3 * w["sometimes"].sum();
    return loss;
  };
  return model::custom_model(
      kWidth, {{"stage", {{"always", {kWidth, kWidth}}, {"never", {kRow}}}, kWidth, linear}},
      {"head", {{"out", {1, kWidth}}, {"sometimes", {kRow}}, {"neither", {kRow}}}, loss_sum});
}

data::StepBatch batch_of(std::initializer_list<float> labels) {
  data::StepBatch batch;
  for (const float label : labels) {
    data::MicroBatch micro;
    micro.rows = 1, micro.length = 1;
    micro.features.assign(kWidth, 0.25f);
    micro.labels = {label};
    batch.micro_batches.push_back(micro);
  }
  batch.tokens = batch.target_tokens = static_cast<std::int64_t>(labels.size());
  return batch;
}

// One AdamW step without bias correction, in fp64.
struct Reference {
  double m = 0, v = 0;
  double step(double w, double gradient, double lr, double decay) {
    m = 0.9 * m + 0.1 * gradient;
    v = 0.999 * v + 0.001 * gradient * gradient;
    return w * (1 - lr * decay) - lr * m / (std::sqrt(v) + 1e-8);
  }
};

TEST(Engine, WeightsWithoutGradientKeepValueAndMoments) {
  EngineOptions options;
  options.accumulation = 2;
  options.weight_decay = 0.1;
  options.hyper.bias_correction = false;
  options.device_memory = 64 * kMiB;
  model::CustomModel model = sometimes_model();
  Engine engine(std::move(model.spec), std::move(model.compute), options);
  const std::vector<float> never = engine.weights("stage.never");
  const std::vector<float> neither = engine.weights("head.neither");
  std::vector<float> always = engine.weights("stage.always");
  std::vector<float> sometimes = engine.weights("head.sometimes");
  std::vector<double> expected(sometimes.begin(), sometimes.end());
  std::vector<Reference> references(kRow);

  // Used in neither micro-batch, the first, the second, both.
  const std::vector<data::StepBatch> batches = {batch_of({-1, -1}), batch_of({1, -1}),
                                                batch_of({-1, -1}), batch_of({-1, 1}),
                                                batch_of({-1, -1}), batch_of({1, 1})};
  const std::vector<double> uses = {0, 1, 0, 1, 0, 2};
  for (std::size_t s = 0; s < batches.size(); ++s) {
    engine.forward(batches[s]);
    engine.backward();
    engine.step(1e-2);
    if (uses[s] > 0) {
      for (std::size_t i = 0; i < kRow; ++i)
        expected[i] = references[i].step(expected[i], 3 * uses[s] / 2, 1e-2, 0.1);
    }
    if (s % 2 == 1) continue;  // the next update runs beside a forward then
    EXPECT_EQ(never, engine.weights("stage.never")) << "step " << s;
    EXPECT_EQ(neither, engine.weights("head.neither")) << "step " << s;
    sometimes = engine.weights("head.sometimes");
    for (std::size_t i = 0; i < kRow; ++i)
      ASSERT_NEAR(expected[i], sometimes[i], 1e-5) << "step " << s << " element " << i;
    const std::vector<float> now = engine.weights("stage.always");
    EXPECT_NE(always, now) << "step " << s;
    always = now;
  }
  sometimes = engine.weights("head.sometimes");
  for (std::size_t i = 0; i < kRow; ++i) ASSERT_NEAR(expected[i], sometimes[i], 1e-5);
}

}  // namespace
}  // namespace zinf
