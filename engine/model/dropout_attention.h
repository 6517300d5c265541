// Causal attention whose weights are dropped out, which LibTorch's flash kernel for CPUs does not
// do. In fp32, with the weights of a block of queries in memory at a time: slower, and right.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "engine/model/batch_view.h"
#include "engine/model/dropout.h"
#include "engine/model/tape.h"

namespace zinf::model {

class DropoutAttention {
 public:
  DropoutAttention(const Tape::Heads& heads, const BatchView& batch, const DropoutMask& mask);

  // q, k, v and the result: [positions, heads x width].
  at::Tensor forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const;
  // Gradients of q, k and v from the result's.
  std::array<at::Tensor, 3> backward(const at::Tensor& gradient, const at::Tensor& q,
                                     const at::Tensor& k, const at::Tensor& v) const;

 private:
  // Some queries of one document and the keys before them, as positions of the micro-batch.
  struct Block {
    std::int64_t first, length, key_first, key_length;
  };
  at::Tensor weights(const Block& block, const at::Tensor& q, const at::Tensor& k) const;
  at::Tensor factors(const Block& block) const;
  at::Tensor queries(const at::Tensor& x, const Block& block) const;
  at::Tensor keys(const at::Tensor& x, const Block& block) const;
  void add_keys_gradient(const at::Tensor& to, const Block& block,
                         const at::Tensor& gradient) const;

  Tape::Heads heads_;
  DropoutMask mask_;
  std::int64_t positions_, row_length_;
  std::vector<Block> blocks_;
};

}  // namespace zinf::model
