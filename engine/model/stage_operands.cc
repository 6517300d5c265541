#include "engine/model/stage_operands.h"

#include "engine/model/aten.h"

#include <cstring>

#include "engine/base/error.h"
#include "engine/base/str.h"

namespace zinf::model {
namespace {

// Matrix kernels may choose their path by alignment; every operand has at least this one, so bits
// do not vary.
constexpr Bytes kOperandAlignment = 64;

void check_aligned(const void* address, const char* what) {
  ZINF_CHECK(reinterpret_cast<std::uintptr_t>(address) % kOperandAlignment == 0,
             str(what, " must start at a multiple of ", kOperandAlignment, " bytes"));
}

void zero_gaps(const PieceSpec& piece, float* gradients) {
  std::int64_t end = 0;
  for (const TensorSpec& tensor : piece.tensors) {
    std::memset(gradients + end, 0, sizeof(float) * static_cast<std::size_t>(tensor.offset - end));
    end = tensor.offset + tensor.elements;
  }
  std::memset(gradients + end, 0, sizeof(float) * static_cast<std::size_t>(piece.elements - end));
}

// The last slice of a table is followed by its padding.
void zero_after_slice(const PieceSpec& piece, const TableSlice& slice, float* gradients) {
  const TensorSpec& table = piece.tensors.at(0);
  if (slice.first_row + slice.rows < table.shape[0]) return;
  const std::int64_t end = slice.rows * table.shape[1];
  std::memset(gradients + end, 0,
              sizeof(float) * static_cast<std::size_t>(piece.elements - table.elements));
}

}  // namespace

StageOperands::StageOperands(const ModelSpec& spec, const StageCall& call, at::ScalarType stored,
                             at::ScalarType computed, std::int64_t positions)
    : spec_(spec),
      stage_(spec.stages.at(call.stage)),
      call_(call),
      stored_(stored),
      computed_(computed),
      positions_(positions) {
  ZINF_CHECK(call.pieces.size() == stage_.pieces.size() &&
                 call.inputs.size() == stage_.inputs.size() &&
                 call.outputs.size() == stage_.outputs.size(),
             str("stage ", stage_.name, ": ", call.pieces.size(), " pieces, ", call.inputs.size(),
                 " inputs, ", call.outputs.size(), " outputs"));
  for (std::size_t i = 0; i < stage_.pieces.size(); ++i) {
    const PieceSpec& piece = spec.pieces.at(stage_.pieces[i]);
    check_aligned(call.pieces[i].weights, "weights");
    check_aligned(call.pieces[i].gradients, "gradients");
    for (const TensorSpec& tensor : piece.tensors) {
      tensors_.push_back({static_cast<int>(i), &tensor, piece.trainable});
    }
  }
  for (const ActivationOperand& input : call.inputs) check_aligned(input.value, "inputs");
}

bool StageOperands::sliced(const Named& named) const {
  return call_.slice.rows > 0 && named.operand == stage_.table;
}

std::vector<std::int64_t> StageOperands::shape(const Named& named) const {
  std::vector<std::int64_t> shape = named.tensor->shape;
  if (sliced(named)) shape[0] = call_.slice.rows;
  return shape;
}

at::Tensor StageOperands::stored_weight(const Named& named) const {
  const std::byte* piece = call_.pieces[named.operand].weights;
  const std::byte* start =
      piece + static_cast<Bytes>(named.tensor->offset) * size_of(spec_.compute_type);
  return at::from_blob(const_cast<std::byte*>(start), shape(named), stored_);
}

bool StageOperands::widened(const Named& named) const {
  // The head reads its table, its largest tensor by far, slice by slice.
  return stored_ != computed_ && named.operand != stage_.table;
}

StageWeights StageOperands::weights(const PreparedWeights& prepared) const {
  StageWeights weights;
  for (const Named& named : tensors_) {
    Weight weight;
    const at::Tensor* wide = prepared.find(named.tensor->name);
    weight.value = wide != nullptr ? *wide : stored_weight(named);
    const PieceOperand& piece = call_.pieces[named.operand];
    // Of a table in slices, all but the last call give gradients of the table alone.
    weight.trainable = named.trainable && (piece.gradients != nullptr || call_.slice.rows == 0);
    if (call_.mode == CallMode::kBackward && weight.trainable) {
      ZINF_CHECK(piece.gradients != nullptr, str("no gradient memory for ", named.tensor->name));
      weight.gradient =
          at::from_blob(piece.gradients + named.tensor->offset, shape(named), at::kFloat);
      weight.overwrite = piece.first_gradient;
    }
    weights.add(named.tensor->name, std::move(weight));
  }
  return weights;
}

void StageOperands::finish_gradients(StageWeights& weights) const {
  for (auto& [name, weight] : weights) {
    if (weight.trainable && weight.overwrite) weight.gradient.zero_();
  }
  for (std::size_t i = 0; i < stage_.pieces.size(); ++i) {
    const PieceSpec& piece = spec_.pieces[stage_.pieces[i]];
    if (!piece.trainable || !call_.pieces[i].first_gradient || call_.pieces[i].gradients == nullptr)
      continue;
    if (call_.slice.rows > 0 && static_cast<int>(i) == stage_.table) {
      zero_after_slice(piece, call_.slice, call_.pieces[i].gradients);
    } else {
      zero_gaps(piece, call_.pieces[i].gradients);
    }
  }
}

at::Tensor StageOperands::activation(std::byte* memory, int activation) const {
  ZINF_CHECK(memory != nullptr,
             str("activation ", spec_.activations.at(activation).name, " has no memory"));
  return at::from_blob(memory, {positions_, spec_.activations.at(activation).width}, stored_);
}

std::vector<Value> StageOperands::inputs(Tape& tape) const {
  std::vector<Value> inputs;
  for (std::size_t i = 0; i < call_.inputs.size(); ++i) {
    inputs.push_back(tape.input(activation(call_.inputs[i].value, stage_.inputs[i]).to(computed_),
                                call_.inputs[i].gradient != nullptr));
  }
  return inputs;
}

at::Tensor StageOperands::output(int number) const {
  return activation(call_.outputs[number].value, stage_.outputs[number]);
}

at::Tensor StageOperands::output_gradient(int number) const {
  return activation(call_.outputs[number].gradient, stage_.outputs[number]).to(computed_);
}

void StageOperands::write_input_gradient(int number, const at::Tensor& gradient) const {
  const ActivationOperand& input = call_.inputs[number];
  if (input.gradient == nullptr) return;
  at::Tensor memory = activation(input.gradient, stage_.inputs[number]);
  if (!gradient.defined()) {
    if (!input.add_gradient) memory.zero_();
  } else if (input.add_gradient) {
    memory.add_(gradient);
  } else {
    memory.copy_(gradient);
  }
}

std::span<std::byte> PreparedWeights::fill(const StageOperands& operands, const StageCall& call) {
  std::vector<const std::byte*> pieces;
  for (const PieceOperand& piece : call.pieces) pieces.push_back(piece.weights);
  const bool same = !call.first_of_visit && stage_ == call.stage && pieces == pieces_ &&
                    workspace_.data() == call.workspace.data() &&
                    workspace_.size() == call.workspace.size();
  if (!same) {
    stage_ = -1;
    tensors_.clear();
    used_ = 0;
    for (const auto& named : operands.tensors_) {
      if (!operands.widened(named)) continue;
      const Bytes size =
          round_up(static_cast<Bytes>(named.tensor->elements) * sizeof(float), kOperandAlignment);
      if (used_ + size > call.workspace.size()) {
        throw Error(ErrorKind::kFailed,
                    str("compute workspace: weights of stage ", operands.stage_.name,
                        " in fp32 need more than its ", format_bytes(call.workspace.size())));
      }
      at::Tensor wide =
          at::from_blob(call.workspace.data() + used_, named.tensor->shape, at::kFloat);
      wide.copy_(operands.stored_weight(named));
      tensors_.emplace(named.tensor->name, std::move(wide));
      used_ += size;
    }
    stage_ = call.stage;
    pieces_ = std::move(pieces);
    workspace_ = call.workspace;
  }
  return call.workspace.subspan(used_);
}

const at::Tensor* PreparedWeights::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::vector<at::Tensor> split_kept(const std::vector<std::shared_ptr<Tape::Node>>& nodes,
                                   std::span<std::byte> kept) {
  std::vector<at::Tensor> tensors;
  Bytes used = 0;
  for (const auto& node : nodes) {
    Bytes size = c10::elementSize(node->type);
    for (const std::int64_t dimension : node->shape) size *= static_cast<Bytes>(dimension);
    if (used + size > kept.size()) {
      throw Error(ErrorKind::kFailed,
                  str("kept activations need more than the ", format_bytes(kept.size()), " given"));
    }
    tensors.push_back(at::from_blob(kept.data() + used, node->shape, node->type));
    used += round_up(size, kOperandAlignment);
  }
  return tensors;
}

}  // namespace zinf::model
