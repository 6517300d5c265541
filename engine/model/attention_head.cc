// Compiled for AVX512-BF16: see bf16_dot.h.
#include "engine/model/attention_head.h"

#include "engine/model/bf16_dot.h"

namespace zinf::model {
namespace {

constexpr std::int64_t kQueryRows = 48;     // of scores in forward
constexpr std::int64_t kQueryColumns = 64;  // of scores in backward, which has them transposed
constexpr std::int64_t kKeyRows = 128;      // of scores in backward, at a time

ZINF_INLINE __m512 exp_of(__m512 x) {
  Vectors<kLanes>::Floats values;
  std::memcpy(&values, &x, sizeof x);
  Vectors<kLanes>::exp_negative(values);
  std::memcpy(&x, &values, sizeof x);
  return x;
}

float dot(const std::uint16_t* a, const std::uint16_t* b, std::int64_t count) {
  __m512 sum = _mm512_setzero_ps();
  for (std::int64_t i = 0; i < count; i += kLanes)
    sum = _mm512_fmadd_ps(widen(a + i), widen(b + i), sum);
  return _mm512_reduce_add_ps(sum);
}

// Cuts memory into arrays; with none, counts what they need.
class Cutter {
 public:
  explicit Cutter(std::byte* memory) : memory_(memory) {}
  template <typename T>
  T* take(std::int64_t count) {
    T* const here = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + taken_);
    taken_ += static_cast<std::size_t>(padded(count * static_cast<std::int64_t>(sizeof(T)), 64));
    return here;
  }
  std::size_t taken() const { return taken_; }

 private:
  std::byte* memory_;
  std::size_t taken_ = 0;
};

// --- Forward: rows of queries, the keys that any of them sees. ---

struct ForwardScratch {
  ForwardScratch(const HeadShape& shape, std::byte* memory)
      : keys(padded(shape.length, kPanel)), stride(keys + kLanes) {
    Cutter cutter(memory);
    key_panels = cutter.take<std::uint32_t>(shape.width / 2 * keys);
    value_pairs = cutter.take<std::uint32_t>(keys / 2 * shape.width);
    scores = cutter.take<float>(kQueryRows * stride);
    shares = cutter.take<std::uint16_t>(kQueryRows * stride);
    mixed = cutter.take<float>(kQueryRows * shape.width);
    bytes = cutter.taken();
  }
  std::int64_t keys, stride;
  std::uint32_t* key_panels;   // [panel of 64 keys][pair of the width][key]
  std::uint32_t* value_pairs;  // [pair of keys][width]
  float* scores;               // [query][key from the block's first on]
  std::uint16_t* shares;       // the same, exp(score - largest)
  float* mixed;                // [query][width]
  std::size_t bytes;
};

// Of one query's scores those in [from, to) become shares, the rest of `columns` zero. Returns the
// sum of the shares, and the largest score.
float softmax_of(const float* scores, std::int64_t from, std::int64_t to, std::int64_t columns,
                 float scale, std::uint16_t* shares, float& largest) {
  const std::int64_t begin = from / kLanes * kLanes;
  __m512 most_of = _mm512_set1_ps(-__builtin_inff());
  for (std::int64_t i = begin; i < to; i += kLanes)
    most_of =
        _mm512_mask_max_ps(most_of, lanes(from - i, to - i), most_of, _mm512_loadu_ps(scores + i));
  largest = _mm512_reduce_max_ps(most_of);
  const __m512 shift = _mm512_set1_ps(largest), factor = _mm512_set1_ps(scale);
  __m512 sum = _mm512_setzero_ps();
  std::memset(shares, 0, static_cast<std::size_t>(begin) * sizeof *shares);
  std::int64_t i = begin;
  for (; i < to; i += kLanes) {
    const __m512 x = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(scores + i), shift), factor);
    const __m512 share = _mm512_maskz_mov_ps(lanes(from - i, to - i), exp_of(x));
    sum = _mm512_add_ps(sum, share);
    store_rounded(share, shares + i);
  }
  std::memset(shares + i, 0, static_cast<std::size_t>(columns - i) * sizeof *shares);
  return _mm512_reduce_add_ps(sum);
}

}  // namespace

std::size_t forward_scratch(const HeadShape& shape) { return ForwardScratch(shape, nullptr).bytes; }

void head_forward(const HeadShape& shape, Bf16Rows q, Bf16Rows k, Bf16Rows v, Bf16Results result,
                  FloatResults log_sums, std::byte* memory) {
  const ForwardScratch scratch(shape, memory);
  const std::int64_t width = shape.width, pairs = width / 2;
  for (std::int64_t key = 0; key < scratch.keys; key += kPanel)
    pack_columns(k, key, least(kPanel, shape.length - key), width, scratch.key_panels + key * pairs,
                 kPanel, kPanel);
  pack_rows(v, 0, shape.length, width, scratch.value_pairs, width, scratch.keys / 2);
  for (std::int64_t first = 0; first < shape.length; first += kQueryRows) {
    const std::int64_t rows = least(kQueryRows, shape.length - first);
    const std::int64_t key = most(0, first - shape.window + 1) / kPanel * kPanel;
    const std::int64_t columns = padded(first + rows - key, kLanes);
    for (std::int64_t panel = 0; panel < columns; panel += kPanel) {
      product<false>(
          {q.row(first), q.stride, rows},
          {scratch.key_panels + (key + panel) * pairs, kPanel, least(kPanel, columns - panel)},
          pairs, {scratch.scores + panel, scratch.stride});
    }
    float sums[kQueryRows];
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t query = first + row - key;  // as its scores are counted
      float largest = 0;
      sums[row] = softmax_of(scratch.scores + row * scratch.stride,
                             most(0, query - shape.window + 1), query + 1, columns, shape.scale,
                             scratch.shares + row * scratch.stride, largest);
      *log_sums.row(first + row) = largest * shape.scale + __builtin_logf(sums[row]);
    }
    product<false>({scratch.shares, scratch.stride, rows},
                   {scratch.value_pairs + key / 2 * width, width, width}, columns / 2,
                   {scratch.mixed, width});
    for (std::int64_t row = 0; row < rows; ++row) {
      const __m512 factor = _mm512_set1_ps(1 / sums[row]);
      for (std::int64_t at = 0; at < width; at += kLanes) {
        const __m512 mixed = _mm512_loadu_ps(scratch.mixed + row * width + at);
        store_rounded(_mm512_mul_ps(mixed, factor), result.row(first + row) + at);
      }
    }
  }
}

// --- Backward: columns of queries, blocks of the keys that any of them sees. ---

struct HeadBackward::Scratch {
  Scratch(const HeadShape& shape, std::byte* memory)
      : key_stride(padded(shape.length, 2 * kLanes) + 2 * kLanes) {
    Cutter cutter(memory);
    const std::int64_t width = shape.width, block = kKeyRows * kQueryColumns;
    to_k = cutter.take<float>(shape.length * width);
    to_v = cutter.take<float>(shape.length * width);
    keys = cutter.take<std::uint16_t>(width * key_stride);
    q_columns = cutter.take<std::uint32_t>(width / 2 * kQueryColumns);
    gradient_columns = cutter.take<std::uint32_t>(width / 2 * kQueryColumns);
    q_pairs = cutter.take<std::uint32_t>(kQueryColumns / 2 * width);
    gradient_pairs = cutter.take<std::uint32_t>(kQueryColumns / 2 * width);
    scores = cutter.take<float>(block);
    to_shares = cutter.take<float>(block);
    shares = cutter.take<std::uint16_t>(block);
    to_scores = cutter.take<std::uint16_t>(block);
    to_score_pairs = cutter.take<std::uint32_t>(block / 2);
    to_q = cutter.take<float>(width * kQueryColumns);
    bytes = cutter.taken();
  }
  std::int64_t key_stride;
  float *to_k, *to_v;                           // [key][width]
  std::uint16_t* keys;                          // [width][key]
  std::uint32_t *q_columns, *gradient_columns;  // [pair of the width][query]
  std::uint32_t *q_pairs, *gradient_pairs;      // [pair of queries][width]
  float *scores, *to_shares;                    // [key][query], of a block
  std::uint16_t *shares, *to_scores;            // [key][query]
  std::uint32_t* to_score_pairs;                // [pair of keys][query]
  float* to_q;                                  // [width][query]
  std::size_t bytes;
};

// Of a column of queries; zero for those beyond the last.
struct HeadBackward::QueryNumbers {
  float log_sum[kQueryColumns] = {};
  float mean[kQueryColumns] = {};  // the gradient of a share, averaged by the shares
};

// Two rows of the block, `row` and the next (if it is below `rows`): from scores and the gradients
// of shares to shares and the gradients of scores. key: of the first row, counted from the first
// query.
void HeadBackward::softmax_backward(const QueryNumbers& numbers, std::int64_t key, std::int64_t row,
                                    std::int64_t rows, const Scratch& scratch) const {
  const __m512 factor = _mm512_set1_ps(shape_.scale);
  for (std::int64_t query = 0; query < kQueryColumns; query += kLanes) {
    const __m512 log_sum = _mm512_loadu_ps(numbers.log_sum + query);
    const __m512 mean = _mm512_loadu_ps(numbers.mean + query);
    __m256i to_scores[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (std::int64_t i = 0; i < 2 && row + i < rows; ++i) {
      const std::int64_t at = (row + i) * kQueryColumns + query, first = key + i - query;
      const __mmask16 seeing = lanes(first, first + shape_.window);
      const __m512 score = _mm512_loadu_ps(scratch.scores + at);
      const __m512 share =
          _mm512_maskz_mov_ps(seeing, exp_of(_mm512_sub_ps(_mm512_mul_ps(score, factor), log_sum)));
      const __m512 above = _mm512_sub_ps(_mm512_loadu_ps(scratch.to_shares + at), mean);
      const __m512 to_score = _mm512_maskz_mul_ps(seeing, _mm512_mul_ps(share, above), factor);
      store_rounded(share, scratch.shares + at);
      to_scores[i] = rounded(to_score);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(scratch.to_scores + at), to_scores[i]);
    }
    _mm512_storeu_si512(scratch.to_score_pairs + row / 2 * kQueryColumns + query,
                        paired(to_scores[0], to_scores[1]));
  }
}

std::size_t HeadBackward::scratch(const HeadShape& shape) { return Scratch(shape, nullptr).bytes; }

HeadBackward::HeadBackward(const HeadShape& shape, Bf16Rows k, Bf16Rows v, std::byte* memory)
    : shape_(shape), k_(k), v_(v), memory_(memory) {
  const Scratch scratch(shape, memory);
  const auto bytes = static_cast<std::size_t>(shape.length * shape.width) * sizeof(float);
  std::memset(scratch.to_k, 0, bytes);
  std::memset(scratch.to_v, 0, bytes);
  transpose_rows(k, shape.length, shape.width, scratch.keys, scratch.key_stride);
}

void HeadBackward::add(const QueryHead& head) {
  const Scratch scratch(shape_, memory_);
  for (std::int64_t first = 0; first < shape_.length; first += kQueryColumns)
    add_queries(head, first, least(kQueryColumns, shape_.length - first), scratch);
}

void HeadBackward::add_queries(const QueryHead& head, std::int64_t first, std::int64_t count,
                               const Scratch& scratch) const {
  const std::int64_t width = shape_.width, pairs = width / 2;
  constexpr std::int64_t kQueryPairs = kQueryColumns / 2;
  pack_columns(head.q, first, count, width, scratch.q_columns, kQueryColumns, kQueryColumns);
  pack_columns(head.gradient, first, count, width, scratch.gradient_columns, kQueryColumns,
               kQueryColumns);
  pack_rows(head.q, first, count, width, scratch.q_pairs, width, kQueryPairs);
  pack_rows(head.gradient, first, count, width, scratch.gradient_pairs, width, kQueryPairs);
  QueryNumbers numbers;
  for (std::int64_t i = 0; i < count; ++i) {
    numbers.log_sum[i] = *head.log_sums.row(first + i);
    numbers.mean[i] = dot(head.gradient.row(first + i), head.result.row(first + i), width);
  }
  std::memset(scratch.to_q, 0, static_cast<std::size_t>(width * kQueryColumns) * sizeof(float));
  const std::int64_t end = first + count;
  for (std::int64_t key = most(0, first - shape_.window + 1) / 2 * 2; key < end; key += kKeyRows) {
    const std::int64_t rows = least(kKeyRows, end - key);
    product<false>({k_.row(key), k_.stride, rows},
                   {scratch.q_columns, kQueryColumns, kQueryColumns}, pairs,
                   {scratch.scores, kQueryColumns});
    product<false>({v_.row(key), v_.stride, rows},
                   {scratch.gradient_columns, kQueryColumns, kQueryColumns}, pairs,
                   {scratch.to_shares, kQueryColumns});
    for (std::int64_t row = 0; row < rows; row += 2)
      softmax_backward(numbers, key + row - first, row, rows, scratch);
    product<true>({scratch.shares, kQueryColumns, rows}, {scratch.gradient_pairs, width, width},
                  kQueryPairs, {scratch.to_v + key * width, width});
    product<true>({scratch.to_scores, kQueryColumns, rows}, {scratch.q_pairs, width, width},
                  kQueryPairs, {scratch.to_k + key * width, width});
    product<true>({scratch.keys + key, scratch.key_stride, width},
                  {scratch.to_score_pairs, kQueryColumns, kQueryColumns}, (rows + 1) / 2,
                  {scratch.to_q, kQueryColumns});
  }
  for (std::int64_t column = 0; column < count; column += kLanes) {
    for (std::int64_t at = 0; at < width; at += kLanes) {
      __m512i block[kLanes];
      for (std::int64_t i = 0; i < kLanes; ++i)
        block[i] = _mm512_loadu_si512(scratch.to_q + (at + i) * kQueryColumns + column);
      transpose(block);
      const std::int64_t kept = least(kLanes, count - column);
      for (std::int64_t i = 0; i < kept; ++i)
        store_rounded(_mm512_castsi512_ps(block[i]), head.to_q.row(first + column + i) + at);
    }
  }
}

void HeadBackward::finish(Bf16Results to_k, Bf16Results to_v) const {
  const Scratch scratch(shape_, memory_);
  for (std::int64_t key = 0; key < shape_.length; ++key) {
    for (std::int64_t at = 0; at < shape_.width; at += kLanes) {
      store_rounded(_mm512_loadu_ps(scratch.to_k + key * shape_.width + at), to_k.row(key) + at);
      store_rounded(_mm512_loadu_ps(scratch.to_v + key * shape_.width + at), to_v.row(key) + at);
    }
  }
}

}  // namespace zinf::model
