// Stages written by users in LibTorch, for zinf::Engine. This header includes LibTorch.
//
//   std::vector<CustomStage> stages;
//   stages.push_back({"layer0", {{"w", {4 * d, d}}, {"b", {4 * d}}}, d,
//                     [](const at::Tensor& x, const Weights& w) { return at::gelu(at::linear(x,
//                     w["w"], w["b"])); }});
//   CustomModel model = custom_model(features, stages, head);
//
// A stage is a pure function: what it returns depends on its arguments only, and its kernels do not
// depend on grad mode. Backward runs it again with gradients on; the graph never outlives the call.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/model/compute.h"

namespace zinf::model {

// The stage's weights by name. Unknown name: Error(kUsage).
class Weights {
 public:
  void add(const std::string& name, at::Tensor tensor) {
    tensors_.emplace_back(name, std::move(tensor));
  }
  const at::Tensor& operator[](const std::string& name) const;
  const std::vector<std::pair<std::string, at::Tensor>>& all() const { return tensors_; }

 private:
  std::vector<std::pair<std::string, at::Tensor>> tensors_;
};

struct CustomTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  double init_std = -1;  // of normal(0, init_std); below 0: 1 / sqrt(3 x columns), the deviation of
                         // PyTorch's Linear
  bool norm_or_bias = false;
};

struct CustomStage {
  std::string name;
  std::vector<CustomTensor> tensors;
  std::int64_t output_width = 0;  // [rows, output_width]
  std::function<at::Tensor(const at::Tensor& x, const Weights& weights)> function;
};

struct CustomHead {
  std::string name;
  std::vector<CustomTensor> tensors;
  // Sum (not mean) over the rows of each row's loss; labels: [rows].
  std::function<at::Tensor(const at::Tensor& x, const Weights& weights, const at::Tensor& labels)>
      loss_sum;
};

struct CustomModel {
  ModelSpec spec;
  std::unique_ptr<Compute> compute;
};

// A chain of stages from MicroBatch.features [rows, features] to the head's loss, in fp32.
CustomModel custom_model(std::int64_t features, std::vector<CustomStage> stages, CustomHead head);

}  // namespace zinf::model
