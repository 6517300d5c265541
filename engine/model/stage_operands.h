// A StageCall's raw memory as tensors: views of weights, gradients and activations, and the
// conversions at the border between what is stored and what a stage computes in.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/model/compute.h"
#include "engine/model/stage_functions.h"

namespace zinf::model {

class StageOperands;

// Weights in the type that the stage computes in, at the front of the workspace, kept over the
// calls of one visit. Tables stay as they are: the head widens them slice by slice.
class PreparedWeights {
 public:
  // Prepares what the call needs, if anything. Returns the part of the workspace that is left.
  std::span<std::byte> fill(const StageOperands& operands, const StageCall& call);
  // nullptr: use the stored weight.
  const at::Tensor* find(const std::string& name) const;

 private:
  int stage_ = -1;
  std::vector<const std::byte*> pieces_;
  std::span<std::byte> workspace_;
  Bytes used_ = 0;
  std::unordered_map<std::string, at::Tensor> tensors_;
};

class StageOperands {
 public:
  // stored: type in memory; computed: type of the stage's arithmetic; positions: rows x length.
  StageOperands(const ModelSpec& spec, const StageCall& call, at::ScalarType stored,
                at::ScalarType computed, std::int64_t positions);

  StageWeights weights(const PreparedWeights& prepared) const;
  // After backward: zeros in gaps, padding and tensors that got no gradient, where the piece is
  // overwritten.
  void finish_gradients(StageWeights& weights) const;

  std::vector<Value> inputs(Tape& tape) const;
  at::Tensor output(int number) const;           // a view, to be written
  at::Tensor output_gradient(int number) const;  // in the computed type
  // `gradient` may be undefined (zero). Does nothing when the caller wants none.
  void write_input_gradient(int number, const at::Tensor& gradient) const;

 private:
  friend class PreparedWeights;
  struct Named {
    int operand;
    const TensorSpec* tensor;
    bool trainable;
  };
  bool sliced(const Named& named) const;  // the operand holds some rows of the tensor
  std::vector<std::int64_t> shape(const Named& named) const;  // of what the operand holds
  at::Tensor stored_weight(const Named& named) const;
  bool widened(const Named& named) const;
  at::Tensor activation(std::byte* memory, int activation) const;

  const ModelSpec& spec_;
  const StageSpec& stage_;
  const StageCall& call_;
  at::ScalarType stored_, computed_;
  std::int64_t positions_;
  std::vector<Named> tensors_;
};

// Cuts `kept` into one tensor per node, in order. Error(kFailed) when it is too small.
std::vector<at::Tensor> split_kept(const std::vector<std::shared_ptr<Tape::Node>>& nodes,
                                   std::span<std::byte> kept);

}  // namespace zinf::model
