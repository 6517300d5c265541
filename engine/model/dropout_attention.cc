#include "engine/model/dropout_attention.h"

#include "engine/model/aten.h"

#include <ATen/Parallel.h>
#include <ATen/ops/bmm.h>

#include <algorithm>
#include <limits>

#include "engine/model/attention_parts.h"
#include "engine/model/family.h"

namespace zinf::model {

namespace {
constexpr std::int64_t kQueriesPerBlock = 64;
}

DropoutAttention::DropoutAttention(const Tape::Heads& heads, const BatchView& batch,
                                   const DropoutMask& mask)
    : heads_(heads), mask_(mask), positions_(batch.positions()), row_length_(batch.length) {
  for (const AttentionPart& part : attention_parts(batch, heads.window)) {
    for (std::int64_t row = 0; row < part.rows; ++row) {
      const std::int64_t first = part.first + row * part.length;
      const std::int64_t key_first = part.key_first + row * part.key_length;
      for (std::int64_t at = 0; at < part.length; at += kQueriesPerBlock) {
        const std::int64_t length = std::min(kQueriesPerBlock, part.length - at);
        const std::int64_t end = first + at + length;  // no query sees beyond itself
        blocks_.push_back({first + at, length, key_first, end - key_first});
      }
    }
  }
}

// Weights, factors and two more of their shape; what a position has in q, k and v is small beside
// it.
void estimate_dropout(const DropoutRates& dropout, std::int64_t heads, StageSpec& stage) {
  if (dropout.attention <= 0) return;
  const double bytes = 5.0 * 4.0 * static_cast<double>(heads * kQueriesPerBlock);
  stage.forward_workspace.per_position += bytes;
  stage.backward_workspace.per_position += bytes;
}

// [heads, length, width] in fp32.
at::Tensor DropoutAttention::queries(const at::Tensor& x, const Block& block) const {
  return x.narrow(0, block.first, block.length)
      .view({block.length, heads_.heads, heads_.width})
      .transpose(0, 1)
      .to(at::kFloat);
}

// The same of the key or value that serves each head.
at::Tensor DropoutAttention::keys(const at::Tensor& x, const Block& block) const {
  return x.narrow(0, block.key_first, block.key_length)
      .view({block.key_length, heads_.kv_heads, heads_.width})
      .transpose(0, 1)
      .to(at::kFloat)
      .repeat_interleave(heads_.heads / heads_.kv_heads, 0);
}

// [heads, length, keys]: softmax of the scores.
at::Tensor DropoutAttention::weights(const Block& block, const at::Tensor& q,
                                     const at::Tensor& k) const {
  at::Tensor scores = at::bmm(q, k.transpose(1, 2)).mul_(heads_.scale);
  const std::int64_t ahead = block.first - block.key_first;
  const at::Tensor from = at::arange(ahead, ahead + block.length, at::kInt).unsqueeze(1);
  const at::Tensor to = at::arange(block.key_length, at::kInt).unsqueeze(0);
  at::Tensor hidden = to.gt(from);
  if (heads_.window > 0) hidden.logical_or_(to.le(from.sub(heads_.window)));
  scores.masked_fill_(hidden, -std::numeric_limits<float>::infinity());
  scores.sub_(scores.amax(-1, true)).exp_();
  return scores.div_(scores.sum(-1, true));
}

at::Tensor DropoutAttention::factors(const Block& block) const {
  at::Tensor result = at::empty({heads_.heads, block.length, block.key_length}, at::kFloat);
  float* const to = result.mutable_data_ptr<float>();
  at::parallel_for(0, heads_.heads * block.length, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t head = i / block.length, query = block.first + i % block.length;
      const std::int64_t first =
          (head * positions_ + query) * row_length_ + block.key_first % row_length_;
      mask_.factors(static_cast<std::uint64_t>(first), block.key_length, to + i * block.key_length);
    }
  });
  return result;
}

// `gradient`: [heads, keys, width]; heads that share a key are added up.
void DropoutAttention::add_keys_gradient(const at::Tensor& to, const Block& block,
                                         const at::Tensor& gradient) const {
  const at::Tensor shared =
      gradient
          .view({heads_.kv_heads, heads_.heads / heads_.kv_heads, block.key_length, heads_.width})
          .sum(1);
  to.narrow(0, block.key_first, block.key_length)
      .view({block.key_length, heads_.kv_heads, heads_.width})
      .transpose(0, 1)
      .add_(shared);
}

at::Tensor DropoutAttention::forward(const at::Tensor& q, const at::Tensor& k,
                                     const at::Tensor& v) const {
  at::Tensor result = at::zeros({q.size(0), q.size(1)}, q.options());
  for (const Block& block : blocks_) {
    const at::Tensor dropped =
        weights(block, queries(q, block), keys(k, block)).mul_(factors(block));
    result.narrow(0, block.first, block.length)
        .view({block.length, heads_.heads, heads_.width})
        .transpose(0, 1)
        .copy_(at::bmm(dropped, keys(v, block)));
  }
  return result;
}

std::array<at::Tensor, 3> DropoutAttention::backward(const at::Tensor& gradient,
                                                     const at::Tensor& q, const at::Tensor& k,
                                                     const at::Tensor& v) const {
  at::Tensor to_q = at::zeros({q.size(0), q.size(1)}, q.options());
  // Blocks of one document share keys: summed in fp32, rounded once.
  const at::Tensor to_k = at::zeros({k.size(0), k.size(1)}, at::kFloat);
  const at::Tensor to_v = at::zeros({v.size(0), v.size(1)}, at::kFloat);
  const at::Tensor contiguous = gradient.contiguous();
  for (const Block& block : blocks_) {
    const at::Tensor from = queries(contiguous, block);
    const at::Tensor q_block = queries(q, block), k_block = keys(k, block);
    const at::Tensor share = weights(block, q_block, k_block);
    const at::Tensor factor = factors(block);
    add_keys_gradient(to_v, block, at::bmm(at::mul(share, factor).transpose(1, 2), from));
    at::Tensor to_share = at::bmm(from, keys(v, block).transpose(1, 2)).mul_(factor);
    // Softmax: share x (to_share - sum over keys of share x to_share).
    to_share.sub_(at::mul(share, to_share).sum(-1, true)).mul_(share).mul_(heads_.scale);
    to_q.narrow(0, block.first, block.length)
        .view({block.length, heads_.heads, heads_.width})
        .transpose(0, 1)
        .copy_(at::bmm(to_share, k_block));
    add_keys_gradient(to_k, block, at::bmm(to_share.transpose(1, 2), q_block));
  }
  return {to_q, to_k.to(k.scalar_type()), to_v.to(v.scalar_type())};
}

}  // namespace zinf::model
