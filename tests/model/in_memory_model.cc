#include "tests/model/in_memory_model.h"

#include <algorithm>
#include <cstring>

#include "cpu_optim/convert.h"
#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/model/float_convert.h"
#include "engine/model/torch_runtime.h"

namespace zinf::model {

Buffer::Buffer(std::size_t bytes) : size_(bytes) {
  const std::size_t whole = std::max<std::size_t>(4096, (bytes + 4095) / 4096 * 4096);
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, whole)));
  poison();
}

void Buffer::poison() { std::memset(data(), 0xFF, size_); }

InMemoryModel::InMemoryModel(Model model, const WeightSource& source, TwinOptions options)
    : model_(std::move(model)),
      options_(options),
      compute_(make_torch_compute(model_, options.compute)) {
  for (const PieceSpec& piece : model_.spec.pieces) {
    std::vector<float> master(piece.elements);
    source.read_piece(piece, 0, piece.elements, master.data());
    Buffer weights(piece.elements * size_of(model_.spec.compute_type));
    if (model_.spec.compute_type == DType::kFloat32) {
      std::memcpy(weights.data(), master.data(), weights.size());
    } else if (model_.spec.compute_type == DType::kFloat16) {
      optim::fp32_to_fp16(master.data(), reinterpret_cast<std::uint16_t*>(weights.data()),
                          piece.elements);
    } else {
      auto* to = reinterpret_cast<std::uint16_t*>(weights.data());
      for (std::int64_t i = 0; i < piece.elements; ++i) to[i] = to_bf16_away(master[i]);
    }
    weights_.push_back(std::move(weights));
    gradients_.push_back(piece.trainable ? Buffer(piece.elements * sizeof(float)) : Buffer());
  }
  set_compute_threads(options_.threads);
  workspace_ = Buffer(options_.workspace);
  forward_peaks_.assign(model_.spec.stages.size(), 0);
  backward_peaks_.assign(model_.spec.stages.size(), 0);
}

void InMemoryModel::allocate(const data::StepBatch& batch) {
  batch_ = &batch;
  compute_->begin_step(batch, options_.loss_scale, options_.dropout_key);
  values_.clear();
  value_gradients_.clear();
  for (const ActivationSpec& activation : model_.spec.activations) {
    std::vector<Buffer> values, gradients;
    for (const data::MicroBatch& micro_batch : batch.micro_batches) {
      const std::size_t bytes = static_cast<std::size_t>(micro_batch.rows) * micro_batch.length *
                                activation.width * size_of(model_.spec.compute_type);
      values.emplace_back(bytes);
      gradients.push_back(options_.gradient_in_place ? Buffer() : Buffer(bytes));
    }
    values_.push_back(std::move(values));
    value_gradients_.push_back(std::move(gradients));
  }
  kept_.clear();
  kept_.resize(model_.spec.stages.size());
  for (auto& kept : kept_) kept.resize(batch.micro_batches.size());
}

void InMemoryModel::for_order(const std::function<void(int, int, bool)>& visit, bool reversed) {
  const int stages = static_cast<int>(model_.spec.stages.size());
  const int count = static_cast<int>(batch_->micro_batches.size());
  const auto stage_at = [&](int i) { return reversed ? stages - 1 - i : i; };
  if (options_.layer_major) {
    for (int i = 0; i < stages; ++i) {
      for (int m = 0; m < count; ++m) visit(stage_at(i), m, m == 0);
    }
  } else {
    for (int m = 0; m < count; ++m) {
      for (int i = 0; i < stages; ++i) visit(stage_at(i), m, true);
    }
  }
}

void InMemoryModel::step(const data::StepBatch& batch) {
  allocate(batch);
  has_gradient_.assign(model_.spec.pieces.size(), false);
  for (Buffer& gradient : gradients_) {
    if (gradient.size() > 0) gradient.poison();
  }
  for_order([&](int stage, int m, bool first) { forward(stage, m, true, first); }, false);
  for_order([&](int stage, int m, bool first) { backward(stage, m, first); }, true);
  lookup_backward(model_.spec.stages[0]);
  losses_.clear();
  for (std::size_t m = 0; m < batch.micro_batches.size(); ++m)
    losses_.push_back(compute_->loss_sum(static_cast<int>(m)));
}

std::vector<double> InMemoryModel::evaluate(const data::StepBatch& batch) {
  allocate(batch);
  for_order([&](int stage, int m, bool first) { forward(stage, m, false, first); }, false);
  std::vector<double> losses;
  for (std::size_t m = 0; m < batch.micro_batches.size(); ++m)
    losses.push_back(compute_->loss_sum(static_cast<int>(m)));
  return losses;
}

double InMemoryModel::evaluate_head(const data::StepBatch& batch, int micro_batch) {
  batch_ = &batch;
  compute_->begin_step(batch, 1, kNoDropout);
  forward(static_cast<int>(model_.spec.stages.size()) - 1, micro_batch, false, true);
  return compute_->loss_sum(micro_batch);
}

std::int32_t InMemoryModel::next_token(int micro_batch) {
  run(static_cast<int>(model_.spec.stages.size()) - 1, micro_batch, CallMode::kNextToken, true);
  return compute_->next_token();
}

void InMemoryModel::lookup(const StageSpec& stage, int m) {
  const std::size_t row =
      model_.spec.activations[stage.outputs[0]].width * size_of(model_.spec.compute_type);
  const auto& ids = batch_->micro_batches[m].ids;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::memcpy(values_[stage.outputs[0]][m].data() + i * row,
                weights_[stage.pieces[0]].data() + ids[i] * row, row);
  }
}

void InMemoryModel::forward(int stage, int m, bool training, bool first) {
  const StageSpec& spec = model_.spec.stages[stage];
  if (spec.kind == StageKind::kLookup) return lookup(spec, m);
  if (spec.kind == StageKind::kHead && training) return;  // with backward
  if (training && options_.keep) kept_[stage][m] = Buffer(options_.kept);
  run(stage, m, training && options_.keep ? CallMode::kForwardKeep : CallMode::kForward, first);
  forward_peaks_[stage] = std::max(forward_peaks_[stage], compute_->workspace_peak());
}

void InMemoryModel::backward(int stage, int m, bool first) {
  const StageSpec& spec = model_.spec.stages[stage];
  if (spec.kind == StageKind::kLookup) return;
  run(stage, m, CallMode::kBackward, first);
  backward_peaks_[stage] = std::max(backward_peaks_[stage], compute_->workspace_peak());
}

void InMemoryModel::run(int stage, int m, CallMode mode, bool first) {
  const StageSpec& spec = model_.spec.stages[stage];
  const bool backward = mode == CallMode::kBackward;
  std::vector<PieceOperand> pieces;
  for (const int piece : spec.pieces) {
    PieceOperand operand{weights_[piece].data(), nullptr, false};
    if (backward && model_.spec.pieces[piece].trainable) {
      operand.gradients = gradients_[piece].floats();
      operand.first_gradient = !has_gradient_[piece];
      has_gradient_[piece] = true;
    }
    pieces.push_back(operand);
  }
  const auto activation = [&](int number) {
    ActivationOperand operand{values_[number][m].data(), nullptr, false};
    if (backward) {
      operand.gradient =
          options_.gradient_in_place ? operand.value : value_gradients_[number][m].data();
    }
    return operand;
  };
  std::vector<ActivationOperand> inputs, outputs;
  for (const int number : spec.inputs) inputs.push_back(activation(number));
  for (const int number : spec.outputs) outputs.push_back(activation(number));
  StageCall call;
  call.stage = stage;
  call.micro_batch = m;
  call.mode = mode;
  call.pieces = pieces;
  call.inputs = inputs;
  call.outputs = outputs;
  if (spec.kind == StageKind::kBlock) call.kept = kept_[stage][m].span();
  call.workspace = workspace_.span();
  call.first_of_visit = first;
  if (first && options_.poison) workspace_.poison();  // what a call finds there must not matter
  compute_->run(call);
}

// Rows summed in (id, position) order into an accumulator of their own, which is then added once.
void InMemoryModel::lookup_backward(const StageSpec& stage) {
  if (stage.kind != StageKind::kLookup || !model_.spec.pieces[stage.pieces[0]].trainable) return;
  const int piece = stage.pieces[0];
  const std::int64_t width = model_.spec.activations[stage.outputs[0]].width;
  std::vector<float> sum(model_.spec.pieces[piece].elements, 0);
  for (std::size_t m = 0; m < batch_->micro_batches.size(); ++m) {
    const std::byte* rows = options_.gradient_in_place
                                ? values_[stage.outputs[0]][m].data()
                                : value_gradients_[stage.outputs[0]][m].data();
    const auto& ids = batch_->micro_batches[m].ids;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      for (std::int64_t j = 0; j < width; ++j) {
        const std::size_t at = i * width + j;
        sum[ids[i] * width + j] +=
            model_.spec.compute_type == DType::kFloat32 ? reinterpret_cast<const float*>(rows)[at]
            : model_.spec.compute_type == DType::kFloat16
                ? from_fp16(reinterpret_cast<const std::uint16_t*>(rows)[at])
                : from_bf16(reinterpret_cast<const std::uint16_t*>(rows)[at]);
      }
    }
  }
  float* gradient = gradients_[piece].floats();
  for (std::size_t i = 0; i < sum.size(); ++i)
    gradient[i] = has_gradient_[piece] ? gradient[i] + sum[i] : sum[i];
}

const float* InMemoryModel::gradient(const std::string& tensor) const {
  for (std::size_t piece = 0; piece < model_.spec.pieces.size(); ++piece) {
    for (const TensorSpec& candidate : model_.spec.pieces[piece].tensors) {
      if (candidate.name == tensor) return gradients_[piece].floats() + candidate.offset;
    }
  }
  ZINF_CHECK(false, str("no tensor ", tensor));
  return nullptr;
}

}  // namespace zinf::model
