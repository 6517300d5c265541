// Causal attention inside documents, by LibTorch's flash kernel for CPUs or our own: memory linear
// in the length, and the same kernel whether or not gradients will follow.
#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/model/attention_parts.h"
#include "engine/model/bf16_attention.h"
#include "engine/model/dropout_attention.h"
#include "engine/model/tape_gradient.h"

namespace zinf::model {
namespace {

// [positions, heads x width] -> [rows, heads, length, width], a view.
at::Tensor by_head(const at::Tensor& x, std::int64_t first, std::int64_t rows, std::int64_t length,
                   std::int64_t heads) {
  return x.narrow(0, first, rows * length)
      .view({rows, length, heads, x.size(1) / heads})
      .transpose(1, 2);
}
at::Tensor queries(const at::Tensor& x, const AttentionPart& part, std::int64_t heads) {
  return by_head(x, part.first, part.rows, part.length, heads);
}
at::Tensor keys(const at::Tensor& x, const AttentionPart& part, std::int64_t heads) {
  return by_head(x, part.key_first, part.rows, part.key_length, heads);
}

at::Tensor by_position(const at::Tensor& x) {
  return x.transpose(1, 2).reshape({x.size(0) * x.size(2), x.size(1) * x.size(3)});
}

// Additive: a position sees itself and the window - 1 before it. nullopt: plain causal does it.
std::optional<at::Tensor> mask_of(const AttentionPart& part, std::int64_t window,
                                  at::ScalarType type) {
  if (!part.masked) return std::nullopt;
  const std::int64_t ahead = part.first - part.key_first;
  const at::Tensor from = at::arange(ahead, ahead + part.length, at::kInt).unsqueeze(1);
  const at::Tensor to = at::arange(part.key_length, at::kInt).unsqueeze(0);
  const at::Tensor hidden = to.gt(from).logical_or_(to.le(from.sub(window)));
  return at::zeros({part.length, part.key_length}, type)
      .masked_fill_(hidden, -std::numeric_limits<float>::infinity());
}

// By LibTorch's kernel. What forward and backward of one call share.
class TorchAttention {
 public:
  TorchAttention(const Tape::Heads& call_heads, const BatchView& batch, at::ScalarType call_type)
      : heads_(call_heads), parts_(attention_parts(batch, call_heads.window)), type_(call_type) {
    at_once_ = parts_.size() == 1 && parts_[0].rows * parts_[0].length == batch.positions();
  }

  // Result [positions, heads x width], and [positions, heads]: log of each softmax's denominator.
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& q, const at::Tensor& k,
                                            const at::Tensor& v) const {
    at::Tensor mixed, log_sums;
    if (!at_once_) {
      mixed = at::zeros(q.sizes(), type_);
      log_sums = at::zeros({q.size(0), heads_.heads}, at::kFloat);
    }
    for (const AttentionPart& part : parts_) {
      const auto mask = mask_of(part, heads_.window, type_);
      const auto [out, log_sum] = at::_scaled_dot_product_flash_attention_for_cpu(
          queries(q, part, heads_.heads), keys(k, part, heads_.kv_heads),
          keys(v, part, heads_.kv_heads), 0.0, !mask.has_value(), mask, heads_.scale);
      const std::int64_t count = part.rows * part.length;
      const at::Tensor log_rows = log_sum.transpose(1, 2).reshape({count, heads_.heads});
      if (at_once_) return {by_position(out), log_rows};
      mixed.narrow(0, part.first, count).copy_(by_position(out));
      log_sums.narrow(0, part.first, count).copy_(log_rows);
    }
    return {mixed, log_sums};
  }

  // Gradients of q, k and v.
  std::array<at::Tensor, 3> backward(const at::Tensor& gradient, const at::Tensor& q,
                                     const at::Tensor& k, const at::Tensor& v,
                                     const at::Tensor& mixed, const at::Tensor& log_sums) const {
    at::Tensor to_q, to_k, to_v;
    if (!at_once_) {
      to_q = at::zeros(q.sizes(), type_);
      to_k = at::zeros(k.sizes(), type_);
      to_v = at::zeros(v.sizes(), type_);
    }
    for (const AttentionPart& part : parts_) {
      const auto mask = mask_of(part, heads_.window, type_);
      const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          queries(gradient, part, heads_.heads), queries(q, part, heads_.heads),
          keys(k, part, heads_.kv_heads), keys(v, part, heads_.kv_heads),
          queries(mixed, part, heads_.heads), queries(log_sums, part, heads_.heads).squeeze(3), 0.0,
          !mask.has_value(), mask, heads_.scale);
      if (at_once_) return {by_position(dq), by_position(dk), by_position(dv)};
      // Blocks of one document share keys.
      to_q.narrow(0, part.first, part.length).copy_(by_position(dq));
      to_k.narrow(0, part.key_first, part.key_length).add_(by_position(dk));
      to_v.narrow(0, part.key_first, part.key_length).add_(by_position(dv));
    }
    return {to_q, to_k, to_v};
  }

 private:
  Tape::Heads heads_;
  std::vector<AttentionPart> parts_;
  bool at_once_ = false;  // one part is everything
  at::ScalarType type_;
};

}  // namespace

Value Tape::attention(const Value& q, const Value& k, const Value& v, const Heads& heads,
                      const BatchView& batch) {
  const std::uint64_t dropout_key = next_dropout_key();
  if (batch.dropout.attention > 0) return dropout_attention(q, k, v, heads, batch, dropout_key);
  if (has_bf16_attention(type_, heads.width))
    return attention_by(Bf16Attention(heads, batch), q, k, v, heads.heads);
  return attention_by(TorchAttention(heads, batch, type_), q, k, v, heads.heads);
}

template <typename Kernel>
Value Tape::attention_by(const Kernel& kernel, const Value& q, const Value& k, const Value& v,
                         std::int64_t heads) {
  at::Tensor mixed, log_sums;
  if (computes()) std::tie(mixed, log_sums) = kernel.forward(q.data(), k.data(), v.data());
  const bool wants =
      q.node()->wants_gradient || k.node()->wants_gradient || v.node()->wants_gradient;
  Value y = make(std::move(mixed), q.node()->shape, wants);
  if (!records()) return y;
  for (const Value* value : {&q, &k, &v, static_cast<const Value*>(&y)}) save(*value);
  const auto sums = make_saved(std::move(log_sums), {q.size(0), heads}, at::kFloat);
  record([qn = q.node(), kn = k.node(), vn = v.node(), out = y.node(), sums, kernel] {
    const at::Tensor gradient = take_gradient(*out);
    if (!gradient.defined()) return;
    const auto [to_q, to_k, to_v] =
        kernel.backward(gradient, qn->data, kn->data, vn->data, out->data, sums->data);
    add_to_node(*qn, to_q);
    add_to_node(*kn, to_k);
    add_to_node(*vn, to_v);
  });
  return y;
}

Value Tape::dropout_attention(const Value& q, const Value& k, const Value& v, const Heads& heads,
                              const BatchView& batch, std::uint64_t key) {
  const DropoutAttention attention(heads, batch, DropoutMask(key, batch.dropout.attention));
  const bool wants =
      q.node()->wants_gradient || k.node()->wants_gradient || v.node()->wants_gradient;
  Value y = make(computes() ? attention.forward(q.data(), k.data(), v.data()) : at::Tensor(),
                 q.node()->shape, wants);
  if (!records()) return y;
  for (const Value* value : {&q, &k, &v}) save(*value);
  record([qn = q.node(), kn = k.node(), vn = v.node(), out = y.node(), attention] {
    const at::Tensor gradient = take_gradient(*out);
    if (!gradient.defined()) return;
    const auto [to_q, to_k, to_v] = attention.backward(gradient, qn->data, kn->data, vn->data);
    add_to_node(*qn, to_q);
    add_to_node(*kn, to_k);
    add_to_node(*vn, to_v);
  });
  return y;
}

}  // namespace zinf::model
