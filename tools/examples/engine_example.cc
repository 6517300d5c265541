// The loop from DeepSpeed's first page with zinf::Engine: 8 x [Linear d -> 4d, GELU, Linear 4d ->
// d] and a scalar head, trained out of core. Usage: engine_example [STEPS] [FOLDER FOR STATE ON
// NVMe]
#include <ATen/ATen.h>
#include <cstdio>
#include <cstdlib>

#include "engine/base/random.h"
#include "engine/model/custom_model.h"
#include "engine/train/engine.h"

using zinf::model::CustomStage;
using zinf::model::Weights;

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 1000;
  constexpr std::int64_t d = 1024;
  std::vector<CustomStage> stages;
  for (int layer = 0; layer < 8; ++layer) {
    stages.push_back(
        {"layer" + std::to_string(layer),
         {{"up", {4 * d, d}}, {"up_bias", {4 * d}}, {"down", {d, 4 * d}}, {"down_bias", {d}}},
         d,
         [](const at::Tensor& x, const Weights& w) {
           const at::Tensor up = at::gelu(at::linear(x, w["up"], w["up_bias"]));
           return at::linear(up, w["down"], w["down_bias"]);
         }});
  }
  zinf::model::CustomHead head{
      "head",
      {{"w", {1, d}}, {"b", {1}}},
      [](const at::Tensor& x, const Weights& w, const at::Tensor& y) {
        return (at::linear(x, w["w"], w["b"]).squeeze(1) - y).square().sum();
      }};
  zinf::model::CustomModel model = zinf::model::custom_model(d, stages, head);

  zinf::EngineOptions options;
  options.micro_batch = 4;
  if (argc > 2) {
    options.nvme = argv[2];
    options.host_memory = 900 * zinf::kMiB;
  }
  zinf::Engine engine(std::move(model.spec), std::move(model.compute), options);

  std::vector<zinf::data::StepBatch> batches(2);  // a batch lives while its update runs
  for (int step = 0; step < steps; ++step) {
    zinf::data::MicroBatch micro;
    micro.rows = 4, micro.length = 1;
    for (int i = 0; i < 4 * d; ++i)
      micro.features.push_back(static_cast<float>(zinf::random_normal(1, step * 4 * d + i)));
    for (int i = 0; i < 4; ++i) micro.labels.push_back(micro.features[i * d] > 0 ? 1.0f : -1.0f);
    batches[step % 2] = {{micro}, 4, 4, 0};
    engine.forward(batches[step % 2]);
    const double loss = engine.backward();
    engine.step(1e-4);
    if (step % 100 == 0 || step + 1 == steps) std::printf("step %d loss %.6f\n", step, loss);
  }
  engine.finish();
}
