// Compute without LibTorch: every output is a hash of every input byte, so that one stale or torn
// byte anywhere changes the final state. Values are small finite floats of the compute type.
#pragma once

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "engine/base/random.h"
#include "engine/model/compute.h"
#include "tests/step/half.h"

namespace zinf::testing {

class FakeCompute : public model::Compute {
 public:
  explicit FakeCompute(const model::ModelSpec& spec) : spec_(spec) {}

  void begin_step(const data::StepBatch& batch, double loss_scale,
                  std::uint64_t dropout_key) override {
    dropout_key_ = dropout_key;
    batch_ = &batch;
    loss_scale_ = static_cast<float>(loss_scale);
    losses_.assign(batch.micro_batches.size(), 0.0);
  }

  void run(const model::StageCall& call) override {
    const model::StageSpec& stage = spec_.stages[call.stage];
    const data::MicroBatch& micro =
        batch_->micro_batches.at(static_cast<std::size_t>(call.micro_batch));
    const auto positions = static_cast<std::int64_t>(micro.rows) * micro.length;
    std::uint64_t seed = random_key(static_cast<std::uint64_t>(call.stage), dropout_key_);
    for (std::size_t i = 0; i < stage.pieces.size(); ++i) {
      const bool sliced = call.slice.rows > 0 && static_cast<int>(i) == stage.table;
      const std::uint64_t hash = sliced ? hash_slices(call, stage)
                                        : hash_tiles(call.pieces[i].weights, stage.pieces[i], 0,
                                                     spec_.pieces[stage.pieces[i]].elements);
      seed = random_key(seed, hash);
    }
    for (std::size_t i = 0; i < stage.inputs.size(); ++i) {
      seed = xxh3_64(call.inputs[i].value, activation_bytes(stage.inputs[i], positions), seed);
    }
    // Scratch use: what is written there must not matter to anyone.
    if (!call.workspace.empty()) std::memset(call.workspace.data(), 0xA5, call.workspace.size());
    if (call.slice.rows > 0 && call.mode != model::CallMode::kBackward && !is_last(call, stage)) {
      // The table's hash is not complete.
    } else if (call.mode == model::CallMode::kForward ||
               call.mode == model::CallMode::kForwardKeep) {
      forward(call, stage, micro, positions, seed);
    } else if (call.mode == model::CallMode::kNextToken) {
      next_token_ = static_cast<std::int32_t>(seed % static_cast<std::uint64_t>(spec_.vocabulary));
    } else {
      backward(call, stage, micro, positions, seed);
    }
    peak_ = call.workspace.size();
  }

  void round_to_bf16(const float* from, std::uint16_t* to, std::int64_t elements) override {
    to_stored(model::DType::kBFloat16, from, reinterpret_cast<std::byte*>(to), elements);
  }

  double loss_sum(int micro_batch) const override {
    return losses_.at(static_cast<std::size_t>(micro_batch));
  }
  std::int32_t next_token() const override { return next_token_; }
  Bytes workspace_peak() const override { return peak_; }

 protected:
  // An output's value, a gradient's, and a micro-batch's loss per target, before they are stored:
  // tests put a non-finite one here.
  virtual float output_of(int /*stage*/, float value) { return value; }
  virtual float gradient_of(int piece, float value) { return value; }
  virtual double loss_of(double value) { return value; }

 private:
  // What slices of a table add up to, in the order of its first and its second pass.
  struct Sums {
    std::uint64_t forward, backward;
  };

  // Adds up over slices of whole tiles.
  std::uint64_t hash_tiles(const std::byte* weights, int piece, std::int64_t first,
                           std::int64_t count) const {
    const Bytes tile = static_cast<Bytes>(model::kTile) * size_of(spec_.compute_type);
    std::uint64_t sum = 0;
    for (std::int64_t at = 0; at < count / model::kTile; ++at)
      sum += xxh3_64(weights + static_cast<Bytes>(at) * tile, tile,
                     random_key(static_cast<std::uint64_t>(piece),
                                static_cast<std::uint64_t>(first / model::kTile + at)));
    return sum;
  }

  const model::TensorSpec& table(const model::StageSpec& stage) const {
    return spec_.pieces[stage.pieces[stage.table]].tensors[0];
  }
  bool is_last(const model::StageCall& call, const model::StageSpec& stage) const {
    return call.slice.first_row + call.slice.rows == table(stage).shape[0];
  }
  std::int64_t slice_elements(const model::StageCall& call, const model::StageSpec& stage) const {
    const std::int64_t width = table(stage).shape[1];
    return is_last(call, stage)
               ? spec_.pieces[stage.pieces[stage.table]].elements - call.slice.first_row * width
               : call.slice.rows * width;
  }

  // Of the whole table, as far as the forward calls have seen it; the backward calls must see it
  // again.
  std::uint64_t hash_slices(const model::StageCall& call, const model::StageSpec& stage) const {
    const std::int64_t first = call.slice.first_row * table(stage).shape[1];
    const std::uint64_t here =
        hash_tiles(call.pieces[stage.table].weights, stage.pieces[stage.table], first,
                   slice_elements(call, stage));
    Sums* sums = reinterpret_cast<Sums*>(call.slice.sums.data());
    if (call.mode != model::CallMode::kBackward) {
      sums->forward = first == 0 ? here : sums->forward + here;
      return sums->forward;
    }
    sums->backward = first == 0 ? here : sums->backward + here;
    if (is_last(call, stage) && sums->backward != sums->forward)
      throw std::runtime_error("the slices of the backward calls are not those of the forward");
    return sums->forward;
  }

  Bytes activation_bytes(int activation, std::int64_t positions) const {
    return static_cast<Bytes>(positions * spec_.activations[activation].width) *
           size_of(spec_.compute_type);
  }

  void fill(std::byte* to, std::int64_t elements, std::uint64_t seed, float added = 0) const {
    std::vector<float> values(static_cast<std::size_t>(elements));
    for (std::int64_t i = 0; i < elements; ++i) values[i] = value(seed, i) + added;
    to_stored(spec_.compute_type, values.data(), to, elements);
  }

  // Multiplies what is stored; exact for a power of two in range.
  void scale(std::byte* at, std::int64_t elements) const {
    std::vector<float> values(static_cast<std::size_t>(elements));
    from_stored(spec_.compute_type, at, values.data(), elements);
    for (float& value : values) value *= loss_scale_;
    to_stored(spec_.compute_type, values.data(), at, elements);
  }

  bool from_lookup(int activation) const {
    for (const model::StageSpec& stage : spec_.stages) {
      if (stage.kind == model::StageKind::kLookup && stage.outputs[0] == activation) return true;
    }
    return false;
  }

  static float value(std::uint64_t seed, std::int64_t i) {
    return static_cast<float>(random_uniform(seed, static_cast<std::uint64_t>(i)) * 2 - 1);
  }

  void forward(const model::StageCall& call, const model::StageSpec& stage,
               const data::MicroBatch& micro, std::int64_t positions, std::uint64_t seed) {
    for (std::size_t i = 0; i < stage.outputs.size(); ++i) {
      fill(call.outputs[i].value, positions * spec_.activations[stage.outputs[i]].width,
           random_key(seed, i), output_of(call.stage, 0));
    }
    if (stage.kind == model::StageKind::kHead) add_loss(call, micro, seed);
    if (call.mode == model::CallMode::kForwardKeep)
      std::memcpy(call.kept.data(), &seed, sizeof seed);
  }

  void add_loss(const model::StageCall& call, const data::MicroBatch& micro, std::uint64_t seed) {
    losses_[static_cast<std::size_t>(call.micro_batch)] =
        loss_of(random_uniform(seed, 7) + 1) * static_cast<double>(micro.target_tokens);
  }

  void backward(const model::StageCall& call, const model::StageSpec& stage,
                const data::MicroBatch& micro, std::int64_t positions, std::uint64_t seed) {
    if (!call.kept.empty()) {
      std::uint64_t kept = 0;
      std::memcpy(&kept, call.kept.data(), sizeof kept);
      if (kept != seed)
        throw std::runtime_error("kept activations are not those of this micro-batch's forward");
    }
    for (std::size_t i = 0; i < stage.outputs.size(); ++i) {
      seed = xxh3_64(call.outputs[i].gradient, activation_bytes(stage.outputs[i], positions), seed);
    }
    if (stage.kind == model::StageKind::kHead) {
      if (call.slice.rows == 0) add_loss(call, micro, seed);
      seed = xxh3_64(micro.targets.data(), micro.targets.size() * 4, seed);
    }
    for (std::size_t i = 0; i < stage.inputs.size(); ++i) {
      if (call.inputs[i].gradient == nullptr) continue;
      ZINF_CHECK(!call.inputs[i].add_gradient, "the fake's stages form a chain");
      const std::int64_t elements = positions * spec_.activations[stage.inputs[i]].width;
      fill(call.inputs[i].gradient, elements, random_key(seed, 100 + i));
      // Gradients between stages are only hashed; those of rows are added to the table's.
      if (from_lookup(stage.inputs[i])) scale(call.inputs[i].gradient, elements);
    }
    for (std::size_t i = 0; i < stage.pieces.size(); ++i) {
      if (call.pieces[i].gradients == nullptr) continue;
      const bool sliced = call.slice.rows > 0 && static_cast<int>(i) == stage.table;
      const std::int64_t first = sliced ? call.slice.first_row * table(stage).shape[1] : 0;
      const std::int64_t count =
          sliced ? slice_elements(call, stage) : spec_.pieces[stage.pieces[i]].elements;
      piece_gradient(call.pieces[i], stage.pieces[i], first, count, random_key(seed, 200 + i));
    }
  }

  // Of elements [first, first + count), which operand.gradients holds.
  void piece_gradient(const model::PieceOperand& operand, int piece, std::int64_t first,
                      std::int64_t count, std::uint64_t seed) {
    if (operand.first_gradient)
      std::memset(operand.gradients, 0, static_cast<std::size_t>(count) * 4);
    for (const model::TensorSpec& tensor : spec_.pieces[piece].tensors) {
      const std::int64_t end = std::min(tensor.offset + tensor.elements, first + count);
      for (std::int64_t i = std::max(tensor.offset, first); i < end; ++i)
        operand.gradients[i - first] += loss_scale_ * gradient_of(piece, value(seed, i));
    }
  }

  const model::ModelSpec& spec_;
  const data::StepBatch* batch_ = nullptr;
  float loss_scale_ = 1;
  std::uint64_t dropout_key_ = model::kNoDropout;
  std::vector<double> losses_;
  std::int32_t next_token_ = 0;
  Bytes peak_ = 0;
};

}  // namespace zinf::testing
