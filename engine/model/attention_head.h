// Causal attention of one head in bf16, by the processor's bf16 dot products (AVX512-BF16): rows of
// the score matrix in fp32, weights rounded to bf16 for the products with values and gradients.
// Memory is linear in the length. Private to bf16_attention.cc, which asks first whether the
// processor has the instructions. A call runs on the calling thread; bits depend on nothing else.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/model/bf16_rows.h"

namespace zinf::model {

// Position i sees the positions of (i - window, i]; queries and keys are the same positions.
struct HeadShape {
  std::int64_t length = 0;
  std::int64_t width = 0;   // a multiple of 16
  std::int64_t window = 0;  // at least 1
  float scale = 0;          // above 0
};

// Bytes of scratch memory, which is aligned to 64 bytes and need not be cleared.
std::size_t forward_scratch(const HeadShape& shape);

// One head's parts of matrices [positions, heads x width]. result = softmax(scale q k^T) v;
// log_sums: the logarithm of each softmax's denominator.
void head_forward(const HeadShape& shape, Bf16Rows q, Bf16Rows k, Bf16Rows v, Bf16Results result,
                  FloatResults log_sums, std::byte* scratch);

// Gradients of one head of keys and values and of the query heads that share it, which are added in
// the order of the calls.
class HeadBackward {
 public:
  static std::size_t scratch(const HeadShape& shape);  // bytes, as above
  HeadBackward(const HeadShape& shape, Bf16Rows k, Bf16Rows v, std::byte* scratch);

  struct QueryHead {
    Bf16Rows gradient, q, result;  // gradient: of the result
    FloatRows log_sums;
    Bf16Results to_q;
  };
  void add(const QueryHead& head);
  void finish(Bf16Results to_k, Bf16Results to_v) const;

 private:
  struct Scratch;
  struct QueryNumbers;
  void add_queries(const QueryHead& head, std::int64_t first, std::int64_t count,
                   const Scratch& scratch) const;
  void softmax_backward(const QueryNumbers& numbers, std::int64_t key, std::int64_t row,
                        std::int64_t rows, const Scratch& scratch) const;

  HeadShape shape_;
  Bf16Rows k_, v_;
  std::byte* memory_;
};

}  // namespace zinf::model
