#include "engine/model/bf16_attention.h"

#include "engine/model/aten.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "engine/model/tape_gradient.h"
#include "engine/model/torch_runtime.h"

namespace zinf::model {
namespace {

// The heads of a matrix [positions, heads x width], from a position on.
Bf16Rows rows_of(const at::Tensor& x, std::int64_t first, std::int64_t head, std::int64_t width) {
  const Bf16Rows rows = bf16_rows(x);
  return {rows.row(first) + head * width, rows.stride};
}
Bf16Results results_of(at::Tensor& x, std::int64_t first, std::int64_t head, std::int64_t width) {
  const Bf16Results rows = bf16_rows_to_write(x);
  return {rows.row(first) + head * width, rows.stride};
}

at::Tensor with_dense_rows(const at::Tensor& x) { return x.stride(1) == 1 ? x : x.contiguous(); }

}  // namespace

bool has_bf16_attention(at::ScalarType type, std::int64_t width) {
  return type == at::kBFloat16 && width % 16 == 0 && uses_bf16_dot_products();
}

Bf16Attention::Bf16Attention(const Tape::Heads& heads, const BatchView& batch)
    : heads_(heads), rows_(batch.rows), row_length_(batch.length) {
  std::int64_t positions = 0;
  for (const Segment& segment : batch.segments) {
    documents_.push_back(
        {static_cast<std::int64_t>(segment.row) * batch.length + segment.start, segment.length});
    longest_ = std::max<std::int64_t>(longest_, segment.length);
    positions += segment.length;
  }
  padded_ = positions < batch.positions();
}

HeadShape Bf16Attention::shape_of(std::int64_t length) const {
  const std::int64_t window = heads_.window > 0 ? heads_.window : length;
  return {length, heads_.width, window, static_cast<float>(heads_.scale)};
}

at::Tensor Bf16Attention::result_like(const at::Tensor& x) const {
  return padded_ ? at::zeros(x.sizes(), x.options()) : at::empty(x.sizes(), x.options());
}

// work(head, document, scratch), on all threads; but on no more than have the scratch memory that
// one document a row would need, which is what a stage's workspace is measured with.
template <typename Work>
void Bf16Attention::for_each_head(std::int64_t heads, std::size_t (*scratch_of)(const HeadShape&),
                                  Work work) const {
  const auto documents = static_cast<std::int64_t>(documents_.size());
  const std::int64_t items = heads * documents;
  if (items == 0) return;
  const std::int64_t threads = at::get_num_threads();
  const auto bytes = static_cast<std::int64_t>(scratch_of(shape_of(longest_)));
  const std::int64_t most = std::min(threads, heads * rows_) *
                            static_cast<std::int64_t>(scratch_of(shape_of(row_length_))) / bytes;
  const std::int64_t workers = std::min({threads, items, most});
  const at::Tensor scratch = at::empty({workers, bytes}, at::kByte);
  auto* const memory = reinterpret_cast<std::byte*>(scratch.data_ptr<std::uint8_t>());
  const std::int64_t each = (items + workers - 1) / workers;
  at::parallel_for(0, items, each, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      work(i / documents, documents_[i % documents], memory + at::get_thread_num() * bytes);
  });
}

std::pair<at::Tensor, at::Tensor> Bf16Attention::forward(const at::Tensor& q, const at::Tensor& k,
                                                         const at::Tensor& v) const {
  const at::Tensor queries = with_dense_rows(q), keys = with_dense_rows(k),
                   values = with_dense_rows(v);
  at::Tensor result = result_like(q);
  at::Tensor log_sums = at::zeros({q.size(0), heads_.heads}, at::kFloat);
  float* const logs = log_sums.mutable_data_ptr<float>();
  const std::int64_t width = heads_.width, sharing = heads_.heads / heads_.kv_heads;
  for_each_head(heads_.heads, forward_scratch,
                [&](std::int64_t head, const Document& document, std::byte* scratch) {
                  const std::int64_t first = document.first;
                  head_forward(shape_of(document.length), rows_of(queries, first, head, width),
                               rows_of(keys, first, head / sharing, width),
                               rows_of(values, first, head / sharing, width),
                               results_of(result, first, head, width),
                               {logs + first * heads_.heads + head, heads_.heads}, scratch);
                });
  return {result, log_sums};
}

std::array<at::Tensor, 3> Bf16Attention::backward(const at::Tensor& gradient, const at::Tensor& q,
                                                  const at::Tensor& k, const at::Tensor& v,
                                                  const at::Tensor& result,
                                                  const at::Tensor& log_sums) const {
  const at::Tensor from = with_dense_rows(gradient), queries = with_dense_rows(q),
                   keys = with_dense_rows(k), values = with_dense_rows(v);
  const float* const logs = log_sums.const_data_ptr<float>();
  at::Tensor to_q = result_like(q), to_k = result_like(k), to_v = result_like(v);
  const std::int64_t width = heads_.width, sharing = heads_.heads / heads_.kv_heads;
  for_each_head(
      heads_.kv_heads, HeadBackward::scratch,
      [&](std::int64_t kv_head, const Document& document, std::byte* scratch) {
        const std::int64_t first = document.first;
        HeadBackward backward(shape_of(document.length), rows_of(keys, first, kv_head, width),
                              rows_of(values, first, kv_head, width), scratch);
        for (std::int64_t head = kv_head * sharing; head < (kv_head + 1) * sharing; ++head) {
          backward.add({rows_of(from, first, head, width),
                        rows_of(queries, first, head, width),
                        rows_of(result, first, head, width),
                        {logs + first * heads_.heads + head, heads_.heads},
                        results_of(to_q, first, head, width)});
        }
        backward.finish(results_of(to_k, first, kv_head, width),
                        results_of(to_v, first, kv_head, width));
      });
  return {to_q, to_k, to_v};
}

}  // namespace zinf::model
