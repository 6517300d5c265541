// A small reverse-mode tape over LibTorch tensors. A family writes a stage once, as a forward
// function over Values; the tape gives forward without memory of it, forward with recording, and
// backward from kept activations. All modes run the same kernels, so a recompute repeats the first
// forward bit for bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/base/random.h"
#include "engine/model/batch_view.h"

namespace zinf::model {

// A weight as a stage sees it. `gradient` (fp32; undefined in forward) is overwritten by the first
// contribution of the call when `overwrite`, and added to by all others.
struct Weight {
  at::Tensor value;
  at::Tensor gradient;
  bool trainable = false;
  bool overwrite = false;
};

// Adds to (or overwrites) a weight's gradient.
void add_gradient(Weight& weight, const at::Tensor& gradient);
// The same with the product a x b, accumulated by the matrix kernel itself in fp32, and in bf16
// where that has a kernel of our own.
void add_gradient_product(Weight& weight, const at::Tensor& a, const at::Tensor& b);

class Tape {
 public:
  enum class Mode {
    kForward,  // computes; nothing is kept for a backward pass
    kRecord,   // computes and records
    kReplay,   // records without computing; data comes from bind_kept()
  };

  struct Node {
    at::Tensor data;
    at::Tensor gradient;
    std::vector<std::int64_t> shape;
    at::ScalarType type = at::kFloat;
    bool saved = false;           // some backward step reads `data`
    bool external = false;        // a stage input: its data is there in every mode
    bool wants_gradient = false;  // something below it is trainable
  };
  // A user's hold on a node's data: when the last one goes and no backward step needs the data, its
  // memory does too.
  class Value {
   public:
    Value() = default;
    explicit Value(std::shared_ptr<Node> node);
    const std::shared_ptr<Node>& node() const { return hold_->node; }
    const at::Tensor& data() const { return hold_->node->data; }
    std::int64_t size(int dimension) const { return hold_->node->shape.at(dimension); }

   private:
    struct Hold {
      explicit Hold(std::shared_ptr<Node> held) : node(std::move(held)) {}
      Hold(const Hold&) = delete;
      ~Hold();
      std::shared_ptr<Node> node;
    };
    // Shared: copies of a Value are the same hold.
    std::shared_ptr<Hold> hold_;
  };

  // dropout_key: of the micro-batch and stage (dropout.h).
  Tape(Mode mode, at::ScalarType type, std::uint64_t dropout_key = 0)
      : mode_(mode), type_(type), dropout_key_(dropout_key) {}

  Value input(at::Tensor data, bool wants_gradient);

  // Operations on [positions, width] matrices; each says what it saves for backward.
  Value linear(const Value& x, Weight& weight,
               Weight* bias);  // weight [out, in] (nn.Linear); saves x
  Value linear_transposed(const Value& x, Weight& weight,
                          Weight* bias);  // weight [in, out] (Conv1D); saves x
  Value layer_norm(const Value& x, Weight& weight, Weight& bias,
                   double epsilon);  // saves x, mean, rstd
  // Over groups of `weight` elements: the whole width, or each head. Saves x, rstd.
  Value rms_norm(const Value& x, Weight& weight, double epsilon);
  // Rotates pairs (i, i + d/2) of every head; cosines and sines are [positions, d/2]. Saves
  // nothing.
  Value rotate(const Value& x, std::int64_t heads, const at::Tensor& cosines,
               const at::Tensor& sines);
  // Causal attention inside each document, over heads of width d; kv heads serve heads / kv_heads
  // query heads each. window > 0: a position sees itself and the window - 1 before it. Its weights
  // are dropped as batch.dropout says. Saves q, k, v; without dropout output and log-sum-exp too.
  struct Heads {
    std::int64_t heads = 0, kv_heads = 0, width = 0, window = 0;
    double scale = 0;
  };
  Value attention(const Value& q, const Value& k, const Value& v, const Heads& heads,
                  const BatchView& batch);
  std::vector<Value> split(const Value& x,
                           const std::vector<std::int64_t>& widths);  // along the width
  Value activation(const Value& x, std::string_view name);            // HF's name; saves x
  Value multiply(const Value& a, const Value& b);                     // saves a, b
  // x + update; `update` must be no other operation's input and gives up its memory.
  Value add(const Value& x, Value update);
  // torch.nn.Dropout while training; rate 0: x. `x` must be no other operation's input and gives up
  // its memory. Saves nothing.
  Value dropout(Value x, double rate);
  // x + table[position]; the table's gradient is summed in position order.
  Value add_rows(const Value& x, Weight& table, const at::Tensor& rows);

  // Bytes and use of kept activations. In kRecord: the saved tensors that are not inputs, in a
  // fixed order. In kReplay: the same order, to be given their data before backward().
  std::vector<std::shared_ptr<Node>> saved_nodes() const;

  // Runs all recorded steps backwards from the outputs' gradients. Gradients of inputs are then in
  // their nodes. The tensors in `gradients` are read only while the caller holds them too.
  void backward(const std::vector<Value>& outputs, const std::vector<at::Tensor>& gradients);

  Mode mode() const { return mode_; }
  at::ScalarType type() const { return type_; }

 private:
  using Step = std::function<void()>;
  bool computes() const { return mode_ != Mode::kReplay; }
  bool records() const { return mode_ != Mode::kForward; }
  template <typename Kernel>
  Value attention_by(const Kernel& kernel, const Value& q, const Value& k, const Value& v,
                     std::int64_t heads);
  Value dropout_attention(const Value& q, const Value& k, const Value& v, const Heads& heads,
                          const BatchView& batch, std::uint64_t key);
  Value make(at::Tensor data, std::vector<std::int64_t> shape, bool wants_gradient);
  // A saved result that is no Value of the stage (a norm's rstd); fp32.
  std::shared_ptr<Node> make_saved(at::Tensor data, std::vector<std::int64_t> shape,
                                   at::ScalarType type);
  void save(const Value& value) { value.node()->saved = true; }
  // Every operation that may drop takes one, so that rates do not change the others' masks.
  std::uint64_t next_dropout_key() { return random_key(dropout_key_, dropouts_++); }
  void record(Step step) { steps_.push_back(std::move(step)); }

  Mode mode_;
  at::ScalarType type_;
  std::uint64_t dropout_key_;
  std::uint64_t dropouts_ = 0;
  std::vector<Step> steps_;
  std::vector<std::shared_ptr<Node>> nodes_;  // in the order of creation; kept only when recording
};

using Value = Tape::Value;

}  // namespace zinf::model
