// Causal attention in bf16 by our own kernel, on processors with bf16 dot products: LibTorch's
// calls a matrix library for each small product, which there widens to fp32 first (measured on two
// cores: three to four times as long). With AMX, LibTorch's kernel uses it and stays.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <utility>
#include <vector>

#include "engine/model/attention_head.h"
#include "engine/model/batch_view.h"
#include "engine/model/tape.h"

namespace zinf::model {

// Whether this processor, type and head have it.
bool has_bf16_attention(at::ScalarType type, std::int64_t width);

class Bf16Attention {
 public:
  Bf16Attention(const Tape::Heads& heads, const BatchView& batch);

  // Result [positions, heads x width], zero at padding, and [positions, heads]: the logarithm of
  // each softmax's denominator.
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& q, const at::Tensor& k,
                                            const at::Tensor& v) const;
  // Gradients of q, k and v from the result's.
  std::array<at::Tensor, 3> backward(const at::Tensor& gradient, const at::Tensor& q,
                                     const at::Tensor& k, const at::Tensor& v,
                                     const at::Tensor& result, const at::Tensor& log_sums) const;

 private:
  struct Document {
    std::int64_t first, length;
  };
  HeadShape shape_of(std::int64_t length) const;
  at::Tensor result_like(const at::Tensor& x) const;
  template <typename Work>
  void for_each_head(std::int64_t heads, std::size_t (*scratch_of)(const HeadShape&),
                     Work work) const;

  Tape::Heads heads_;
  std::vector<Document> documents_;
  std::int64_t rows_ = 0, row_length_ = 0, longest_ = 0;
  bool padded_ = false;  // positions that are in no document
};

}  // namespace zinf::model
