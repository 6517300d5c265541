#include "engine/model/custom_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/model/bf16_kernels.h"
#include "engine/model/torch_runtime.h"
#include "engine/model/torch_thread.h"

namespace zinf::model {

const at::Tensor& Weights::operator[](const std::string& name) const {
  std::string known;
  for (const auto& [candidate, tensor] : tensors_) {
    if (candidate == name) return tensor;
    known += (known.empty() ? "" : ", ") + candidate;
  }
  throw Error(ErrorKind::kUsage, str("a stage asks for the weight \"", name, "\"; it has ", known));
}

namespace {

class CustomCompute : public Compute {
 public:
  CustomCompute(const ModelSpec& spec, std::vector<CustomStage> stages, CustomHead head)
      : spec_(spec), stages_(std::move(stages)), head_(std::move(head)) {}

  // Stages are pure functions: nothing is dropped.
  void begin_step(const data::StepBatch& batch, double loss_scale,
                  std::uint64_t /*dropout_key*/) override {
    batch_ = &batch;
    scale_ = loss_scale / static_cast<double>(batch.target_tokens);
    losses_.assign(batch.micro_batches.size(), 0);
  }

  void run(const StageCall& call) override {
    attach_compute_thread();
    try {
      WorkspaceScope scope(call.workspace);
      call.mode == CallMode::kBackward ? backward(call) : forward(call);
      scope.check_empty();
      peak_ = scope.peak();
    } catch (const c10::Error& error) {
      throw Error(ErrorKind::kFailed, str("stage ", spec_.stages[call.stage].name,
                                          ": LibTorch says: ", error.what_without_backtrace()));
    }
  }

  void round_to_bf16(const float* from, std::uint16_t* to, std::int64_t elements) override {
    attach_compute_thread();
    model::round_to_bf16(from, to, elements);
  }

  double loss_sum(int micro_batch) const override {
    return losses_.at(static_cast<std::size_t>(micro_batch));
  }
  std::int32_t next_token() const override { return 0; }
  Bytes workspace_peak() const override { return peak_; }

 private:
  bool is_head(int stage) const { return spec_.stages[stage].kind == StageKind::kHead; }
  const data::MicroBatch& micro(const StageCall& call) const {
    return batch_->micro_batches[static_cast<std::size_t>(call.micro_batch)];
  }

  at::Tensor input(const StageCall& call) const {
    const std::int64_t rows = micro(call).rows;
    const StageSpec& stage = spec_.stages[call.stage];
    if (stage.inputs.empty()) {
      return at::from_blob(const_cast<float*>(micro(call).features.data()),
                           {rows, spec_.feature_width}, at::kFloat);
    }
    return at::from_blob(call.inputs[0].value, {rows, spec_.activations[stage.inputs[0]].width},
                         at::kFloat);
  }

  Weights weights(const StageCall& call, bool gradients) const {
    Weights result;
    const PieceSpec& piece = spec_.pieces[spec_.stages[call.stage].pieces[0]];
    auto* base = reinterpret_cast<float*>(const_cast<std::byte*>(call.pieces[0].weights));
    for (const TensorSpec& tensor : piece.tensors) {
      at::Tensor view = at::from_blob(base + tensor.offset, tensor.shape, at::kFloat);
      if (gradients) view.requires_grad_(true);
      result.add(tensor.name.substr(piece.name.size() + 1), view);
    }
    return result;
  }

  at::Tensor apply(const StageCall& call, const at::Tensor& x, const Weights& w) const {
    if (!is_head(call.stage)) return stages_[static_cast<std::size_t>(call.stage)].function(x, w);
    const at::Tensor labels = at::from_blob(const_cast<float*>(micro(call).labels.data()),
                                            {micro(call).rows}, at::kFloat);
    return head_.loss_sum(x, w, labels);
  }

  void forward(const StageCall& call) {
    const at::NoGradGuard no_grad;
    const at::Tensor y = apply(call, input(call), weights(call, false));
    if (is_head(call.stage)) {
      losses_[static_cast<std::size_t>(call.micro_batch)] = y.item<double>();
    } else {
      std::memcpy(call.outputs[0].value, y.contiguous().data_ptr(), y.nbytes());
    }
  }

  void backward(const StageCall& call) {
    std::vector<at::Tensor> gradients;
    const Weights w = weights(call, true);
    at::Tensor x = input(call);
    const bool wants_input = !call.inputs.empty() && call.inputs[0].gradient != nullptr;
    {
      const at::AutoGradMode grad(true);
      if (wants_input) x.requires_grad_(true);
      const at::Tensor y = apply(call, x, w);
      at::Tensor above;
      if (is_head(call.stage)) {
        losses_[static_cast<std::size_t>(call.micro_batch)] = y.item<double>();
        above = at::full_like(y, scale_);
      } else {
        above = at::from_blob(call.outputs[0].gradient, y.sizes(), at::kFloat);
      }
      std::vector<at::Tensor> wanted;
      for (const auto& [name, tensor] : w.all()) wanted.push_back(tensor);
      if (wants_input) wanted.push_back(x);
      gradients = torch::autograd::grad({y}, wanted, {above}, false, false, true);
    }
    const at::NoGradGuard no_grad;
    if (call.pieces[0].gradients != nullptr) add_gradients(call, gradients);
    if (wants_input) {
      const at::Tensor dx = gradients.back().contiguous();
      std::memcpy(call.inputs[0].gradient, dx.data_ptr(), dx.nbytes());
    }
  }

  void add_gradients(const StageCall& call, const std::vector<at::Tensor>& gradients) const {
    const PieceSpec& piece = spec_.pieces[spec_.stages[call.stage].pieces[0]];
    float* base = call.pieces[0].gradients;
    char* unused = call.pieces[0].unused;
    if (call.pieces[0].first_gradient) {
      std::memset(base, 0, static_cast<std::size_t>(piece.elements) * sizeof(float));
      if (unused != nullptr) std::fill_n(unused, piece.tensors.size(), char{1});
    }
    for (std::size_t i = 0; i < piece.tensors.size(); ++i) {
      if (!gradients[i].defined()) continue;
      if (unused != nullptr) unused[i] = 0;
      at::from_blob(base + piece.tensors[i].offset, piece.tensors[i].shape, at::kFloat)
          .add_(gradients[i]);
    }
  }

  ModelSpec spec_;
  std::vector<CustomStage> stages_;
  CustomHead head_;
  const data::StepBatch* batch_ = nullptr;
  double scale_ = 0;
  std::vector<double> losses_;
  Bytes peak_ = 0;
};

int add_piece(ModelSpec& spec, const std::string& name, const std::vector<CustomTensor>& tensors) {
  PieceSpec piece;
  piece.name = name;
  for (const CustomTensor& from : tensors) {
    TensorSpec tensor;
    tensor.name = str(name, ".", from.name);
    tensor.shape = from.shape;
    tensor.norm_or_bias = from.norm_or_bias || from.shape.size() == 1;
    const double columns = from.shape.empty() ? 1.0 : static_cast<double>(from.shape.back());
    tensor.init_std = from.init_std >= 0 ? from.init_std : 1 / std::sqrt(3 * columns);
    piece.tensors.push_back(std::move(tensor));
  }
  lay_out(piece);
  spec.pieces.push_back(std::move(piece));
  return static_cast<int>(spec.pieces.size()) - 1;
}

}  // namespace

CustomModel custom_model(std::int64_t features, std::vector<CustomStage> stages, CustomHead head) {
  CustomModel model;
  ModelSpec& spec = model.spec;
  spec.family = "custom";
  spec.feature_width = features;
  for (const CustomStage& from : stages) {
    StageSpec stage;
    stage.name = from.name;
    stage.pieces = {add_piece(spec, from.name, from.tensors)};
    if (!spec.activations.empty()) stage.inputs = {static_cast<int>(spec.activations.size()) - 1};
    stage.outputs = {static_cast<int>(spec.activations.size())};
    spec.activations.push_back({from.name, from.output_width});
    spec.stages.push_back(std::move(stage));
  }
  StageSpec last;
  last.name = head.name;
  last.kind = StageKind::kHead;
  last.pieces = {add_piece(spec, head.name, head.tensors)};
  if (!spec.activations.empty()) last.inputs = {static_cast<int>(spec.activations.size()) - 1};
  spec.stages.push_back(std::move(last));
  model.compute = std::make_unique<CustomCompute>(spec, std::move(stages), std::move(head));
  return model;
}

}  // namespace zinf::model
