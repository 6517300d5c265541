#include "engine/model/torch_compute.h"

#include "engine/model/aten.h"

#include <algorithm>
#include <limits>
#include <span>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/model/bf16_kernels.h"
#include "engine/model/lm_head.h"
#include "engine/model/stage_functions.h"
#include "engine/model/stage_operands.h"
#include "engine/model/torch_runtime.h"
#include "engine/model/torch_thread.h"

namespace zinf::model {
namespace {

at::ScalarType torch_type(DType type) {
  switch (type) {
    case DType::kFloat32:
      return at::kFloat;
    case DType::kBFloat16:
      return at::kBFloat16;
    case DType::kFloat16:
      return at::kHalf;
  }
  return at::kFloat;
}

class TorchCompute final : public Compute {
 public:
  TorchCompute(const Model& model, const ComputeOptions& options)
      : spec_(model.spec), functions_(model.functions), stored_(torch_type(spec_.compute_type)) {
    const bool native = spec_.compute_type == DType::kBFloat16 &&
                        (options.bf16_math == Bf16Math::kNative ||
                         (options.bf16_math == Bf16Math::kAuto && has_bf16_hardware()));
    type_ = native ? stored_ : at::kFloat;
  }

  void begin_step(const data::StepBatch& batch, double loss_scale,
                  std::uint64_t dropout_key) override {
    batch_ = &batch;
    gradient_scale_ =
        batch.target_tokens > 0 ? loss_scale / static_cast<double>(batch.target_tokens) : 0;
    losses_.assign(batch.micro_batches.size(), std::numeric_limits<double>::quiet_NaN());
    views_.clear();
    for (const data::MicroBatch& micro_batch : batch.micro_batches) {
      BatchView view = view_batch(micro_batch);
      if (dropout_key != kNoDropout) view.dropout = spec_.dropout;
      view.dropout_key = random_key(
          dropout_key, static_cast<std::size_t>(batch.first_micro_batch) + views_.size());
      views_.push_back(std::move(view));
    }
  }

  void run(const StageCall& call) override {
    ZINF_CHECK(batch_ != nullptr && call.micro_batch < static_cast<int>(views_.size()),
               "run() without begin_step()");
    attach_compute_thread();
    const at::NoGradGuard no_grad;
    try {
      const StageOperands operands(spec_, call, stored_, type_,
                                   views_[call.micro_batch].positions());
      const std::span<std::byte> rest = prepared_.fill(operands, call);
      WorkspaceScope scope(rest);
      run_in_workspace(call, operands);
      scope.check_empty();
      peak_ = static_cast<Bytes>(rest.data() - call.workspace.data()) + scope.peak();
    } catch (const c10::Error& error) {
      throw Error(ErrorKind::kFailed, str("stage ", spec_.stages.at(call.stage).name,
                                          ": LibTorch says: ", error.what_without_backtrace()));
    }
  }

  void round_to_bf16(const float* from, std::uint16_t* to, std::int64_t elements) override {
    attach_compute_thread();
    model::round_to_bf16(from, to, elements);
  }

  double loss_sum(int micro_batch) const override { return losses_.at(micro_batch); }
  std::int32_t next_token() const override { return next_token_; }
  Bytes workspace_peak() const override { return peak_; }

 private:
  void run_in_workspace(const StageCall& call, const StageOperands& operands) {
    StageWeights weights = operands.weights(prepared_);
    const bool head = spec_.stages[call.stage].kind == StageKind::kHead;
    ZINF_CHECK(spec_.stages[call.stage].kind != StageKind::kLookup, "a lookup is no compute call");
    if (head && call.slice.rows > 0) {
      run_table_slice(call, operands, weights);
    } else if (head) {
      run_head(call, operands, weights);
    } else if (call.mode == CallMode::kBackward) {
      block_backward(call, operands, weights);
    } else {
      block_forward(call, operands, weights);
    }
    if (call.mode == CallMode::kBackward) operands.finish_gradients(weights);
  }

  std::uint64_t dropout_key(const StageCall& call) const {
    return random_key(views_[call.micro_batch].dropout_key, call.stage);
  }

  std::vector<Value> record_block(const StageCall& call, const StageOperands& operands,
                                  StageWeights& weights, Tape& tape,
                                  std::vector<Value>& inputs) const {
    inputs = operands.inputs(tape);
    std::vector<Value> outputs =
        functions_->block(call.stage, tape, weights, inputs, views_[call.micro_batch]);
    ZINF_CHECK(outputs.size() == call.outputs.size(), "number of outputs");
    return outputs;
  }

  void block_forward(const StageCall& call, const StageOperands& operands,
                     StageWeights& weights) const {
    const bool keep = call.mode == CallMode::kForwardKeep;
    Tape tape(keep ? Tape::Mode::kRecord : Tape::Mode::kForward, type_, dropout_key(call));
    std::vector<Value> inputs;
    const std::vector<Value> outputs = record_block(call, operands, weights, tape, inputs);
    for (std::size_t i = 0; i < outputs.size(); ++i)
      operands.output(static_cast<int>(i)).copy_(outputs[i].data());
    if (!keep) return;
    const auto nodes = tape.saved_nodes();
    const std::vector<at::Tensor> kept = split_kept(nodes, call.kept);
    for (std::size_t i = 0; i < nodes.size(); ++i) at::Tensor(kept[i]).copy_(nodes[i]->data);
  }

  void block_backward(const StageCall& call, const StageOperands& operands,
                      StageWeights& weights) const {
    const bool replay = !call.kept.empty();
    Tape tape(replay ? Tape::Mode::kReplay : Tape::Mode::kRecord, type_, dropout_key(call));
    std::vector<Value> inputs;
    std::vector<at::Tensor> gradients;
    {
      const std::vector<Value> outputs = record_block(call, operands, weights, tape, inputs);
      if (replay) {
        const auto nodes = tape.saved_nodes();
        const std::vector<at::Tensor> kept = split_kept(nodes, call.kept);
        for (std::size_t i = 0; i < nodes.size(); ++i) nodes[i]->data = kept[i];
      }
      for (std::size_t i = 0; i < outputs.size(); ++i)
        gradients.push_back(operands.output_gradient(static_cast<int>(i)));
      tape.backward(outputs, gradients);
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      operands.write_input_gradient(static_cast<int>(i), inputs[i].node()->gradient);
    }
  }

  void run_head(const StageCall& call, const StageOperands& operands, StageWeights& weights) {
    const bool backward = call.mode == CallMode::kBackward;
    Tape tape(backward ? Tape::Mode::kRecord : Tape::Mode::kForward, type_);
    const std::vector<Value> inputs = operands.inputs(tape);
    const BatchView& batch = views_[call.micro_batch];
    const HeadResult head = functions_->head(tape, weights, inputs.at(0), batch);
    HeadLoss loss;
    if (call.mode == CallMode::kNextToken) {
      next_token_ = most_likely(head.hidden.data().narrow(0, last_position(batch), 1),
                                weights(head.table).value, 0)
                        .id;
      return;
    }
    if (head.table.empty()) {
      loss = squared_error(head.hidden.data(), *batch.batch, gradient_scale_, backward);
    } else {
      Weight& table = weights(head.table);
      const HeadInput input{head.hidden.data(), table.value, &batch.batch->targets,
                            spec_.vocabulary};
      if (backward) {
        loss = head_loss_and_gradients(input, gradient_scale_, table);
      } else {
        std::vector<PositionSums> sums(batch.batch->targets.size());
        add_to_sums(input, sums);
        loss.loss_sum = loss_from_sums(*input.targets, sums);
      }
    }
    losses_[call.micro_batch] = loss.loss_sum;
    if (!backward) return;
    tape.backward({head.hidden}, {loss.to_hidden});
    operands.write_input_gradient(0, inputs[0].node()->gradient);
  }

  // One slice of the head's table: see compute.h.
  void run_table_slice(const StageCall& call, const StageOperands& operands,
                       StageWeights& weights) {
    const TableSlice& slice = call.slice;
    const BatchView& batch = views_[call.micro_batch];
    const bool first = slice.first_row == 0;
    const bool last = slice.first_row + slice.rows == spec_.vocabulary;
    const bool ends_backward = call.mode == CallMode::kBackward && last;
    Tape tape(ends_backward ? Tape::Mode::kRecord : Tape::Mode::kForward, type_);
    const std::vector<Value> inputs = operands.inputs(tape);
    const HeadResult head = functions_->head(tape, weights, inputs.at(0), batch);
    Weight& table = weights(head.table);
    if (call.mode == CallMode::kNextToken) {
      BestToken* best = reinterpret_cast<BestToken*>(slice.sums.data());
      if (first) *best = {};
      const BestToken here = most_likely(head.hidden.data().narrow(0, last_position(batch), 1),
                                         table.value, slice.first_row);
      if (here.logit > best->logit) *best = here;
      next_token_ = best->id;
      return;
    }
    const auto& targets = batch.batch->targets;
    const HeadInput input{head.hidden.data(), table.value, &targets, spec_.vocabulary,
                          slice.first_row};
    const std::span sums(reinterpret_cast<PositionSums*>(slice.sums.data()), targets.size());
    if (call.mode == CallMode::kForward) {
      if (first) std::fill(sums.begin(), sums.end(), PositionSums{});
      add_to_sums(input, sums);
      if (last) losses_[call.micro_batch] = loss_from_sums(targets, sums);
      return;
    }
    const std::int64_t width = head.hidden.size(1);
    const Bytes after_sums = table_sums_bytes(batch.positions(), 0);
    at::Tensor to_selected =
        at::from_blob(slice.sums.data() + after_sums, {count_targets(targets), width}, at::kFloat);
    if (first) to_selected.zero_();
    part_gradients(input, sums, gradient_scale_, to_selected, table);
    if (!last) return;
    tape.backward({head.hidden}, {spread_selected(to_selected, input)});
    operands.write_input_gradient(0, inputs[0].node()->gradient);
  }

  // Where row 0's text ends.
  static std::int64_t last_position(const BatchView& batch) {
    std::int64_t last = batch.length - 1;
    while (last > 0 && batch.batch->documents[last] < 0) --last;
    return last;
  }

  const ModelSpec spec_;
  const std::shared_ptr<const StageFunctions> functions_;  // shared with the Model: see model.h
  const at::ScalarType stored_;                            // of weights and activations in memory
  at::ScalarType type_;                                    // in which stages compute
  PreparedWeights prepared_;

  const data::StepBatch* batch_ = nullptr;
  double gradient_scale_ = 0;
  std::vector<BatchView> views_;
  std::vector<double> losses_;
  std::int32_t next_token_ = -1;
  Bytes peak_ = 0;
};

}  // namespace

std::unique_ptr<Compute> make_torch_compute(const Model& model, const ComputeOptions& options) {
  ZINF_CHECK(model.functions != nullptr, "a model without functions");
  return std::make_unique<TorchCompute>(model, options);
}

}  // namespace zinf::model
