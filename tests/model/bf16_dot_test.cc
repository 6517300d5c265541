// The kernels on bf16 dot products against the formulas in double, on arrays that end where memory
// ends.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "engine/base/random.h"
#include "engine/model/attention_head.h"
#include "engine/model/float_convert.h"
#include "engine/model/gradient_tiles.h"
#include "engine/model/torch_runtime.h"

namespace zinf::model {
namespace {

// The page behind the last element can't be touched.
template <typename T>
class Guarded {
 public:
  explicit Guarded(std::int64_t count) : count_(count) {
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
    size_ = (bytes + kPage - 1) / kPage * kPage;
    memory_ =
        mmap(nullptr, size_ + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory_, MAP_FAILED);
    EXPECT_EQ(mprotect(static_cast<std::byte*>(memory_) + size_, kPage, PROT_NONE), 0);
    data_ = reinterpret_cast<T*>(static_cast<std::byte*>(memory_) + size_ - bytes);
  }
  ~Guarded() { munmap(memory_, size_ + kPage); }
  Guarded(const Guarded&) = delete;
  T* data() { return data_; }
  T& operator[](std::int64_t i) { return data_[i]; }
  std::vector<T> values() const { return {data_, data_ + count_}; }

 private:
  static constexpr std::size_t kPage = 4096;
  std::int64_t count_;
  std::size_t size_ = 0;
  void* memory_ = nullptr;
  T* data_ = nullptr;
};

using Bits = Guarded<std::uint16_t>;

void draw(Bits& bits, std::int64_t count, std::uint64_t key) {
  for (std::int64_t i = 0; i < count; ++i)
    bits[i] = to_bf16_even(static_cast<float>(random_normal(key, static_cast<std::uint64_t>(i))));
}

// Attention of one head in double; arrays are [length][width].
struct Reference {
  std::vector<double> result, log_sums, to_q, to_k, to_v;

  Reference(const HeadShape& shape, Bits& q, Bits& k, Bits& v, Bits& gradient) {
    const std::int64_t length = shape.length, width = shape.width;
    const auto size = static_cast<std::size_t>(length * width);
    for (auto* all : {&result, &to_q, &to_k, &to_v}) all->assign(size, 0);
    const auto dot = [&](Bits& a, std::int64_t i, Bits& b, std::int64_t j) {
      double sum = 0;
      for (std::int64_t d = 0; d < width; ++d)
        sum += double{from_bf16(a[i * width + d])} * double{from_bf16(b[j * width + d])};
      return sum;
    };
    const double scale = shape.scale;
    for (std::int64_t i = 0; i < length; ++i) {
      const std::int64_t first = std::max<std::int64_t>(0, i - shape.window + 1);
      double sum = 0, mean = 0;
      std::vector<double> share, to_share;
      for (std::int64_t j = first; j <= i; ++j) {
        share.push_back(std::exp(scale * dot(q, i, k, j)));
        to_share.push_back(dot(gradient, i, v, j));
        sum += share.back();
      }
      log_sums.push_back(std::log(sum));
      for (std::size_t j = 0; j < share.size(); ++j) {
        share[j] /= sum;
        mean += share[j] * to_share[j];
      }
      for (std::size_t n = 0; n < share.size(); ++n) {
        const std::int64_t j = first + static_cast<std::int64_t>(n);
        const double to_score = scale * share[n] * (to_share[n] - mean);
        for (std::int64_t d = 0; d < width; ++d) {
          const auto at_i = static_cast<std::size_t>(i * width + d);
          const auto at_j = static_cast<std::size_t>(j * width + d);
          result[at_i] += share[n] * double{from_bf16(v[j * width + d])};
          to_q[at_i] += to_score * double{from_bf16(k[j * width + d])};
          to_k[at_j] += to_score * double{from_bf16(q[i * width + d])};
          to_v[at_j] += share[n] * double{from_bf16(gradient[i * width + d])};
        }
      }
    }
  }
};

double relative_error(const std::vector<std::uint16_t>& bits, const std::vector<double>& exact) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    error += std::pow(double{from_bf16(bits[i])} - exact[i], 2);
    size += exact[i] * exact[i];
  }
  return std::sqrt(error / size);
}

struct HeadResults {
  std::vector<std::uint16_t> result, to_q, to_k, to_v;
  std::vector<float> log_sums;
  bool operator==(const HeadResults&) const = default;
};

// `fill`: of the scratch memory and of the results before.
HeadResults run_head(const HeadShape& shape, Bits& q, Bits& k, Bits& v, Bits& gradient,
                     std::uint8_t fill) {
  const std::int64_t size = shape.length * shape.width, width = shape.width;
  Bits result(size), to_q(size), to_k(size), to_v(size);
  Guarded<float> log_sums(shape.length);
  for (Bits* all : {&result, &to_q, &to_k, &to_v})
    std::memset(all->data(), fill, static_cast<std::size_t>(size) * 2);
  const std::size_t bytes = std::max(forward_scratch(shape), HeadBackward::scratch(shape));
  Guarded<std::byte> scratch(static_cast<std::int64_t>(bytes));
  std::memset(scratch.data(), fill, bytes);
  head_forward(shape, {q.data(), width}, {k.data(), width}, {v.data(), width},
               {result.data(), width}, {log_sums.data(), 1}, scratch.data());
  std::memset(scratch.data(), fill, bytes);
  HeadBackward backward(shape, {k.data(), width}, {v.data(), width}, scratch.data());
  backward.add({{gradient.data(), width},
                {q.data(), width},
                {result.data(), width},
                {log_sums.data(), 1},
                {to_q.data(), width}});
  backward.finish({to_k.data(), width}, {to_v.data(), width});
  return {result.values(), to_q.values(), to_k.values(), to_v.values(), log_sums.values()};
}

class Bf16Dot : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_bf16_dot_products()) GTEST_SKIP() << "the processor has no bf16 dot products";
  }
};

TEST_F(Bf16Dot, AttentionIsTheFormula) {
  for (const std::int64_t length : {1, 2, 15, 16, 17, 47, 49, 64, 65, 129, 200}) {
    for (const std::int64_t width : {16, 48, 64, 80, 256}) {
      for (const std::int64_t window :
           {std::int64_t{1}, std::int64_t{7}, std::int64_t{70}, length}) {
        const HeadShape shape = {length, width, window, 1 / std::sqrt(static_cast<float>(width))};
        const std::int64_t size = length * width;
        Bits q(size), k(size), v(size), gradient(size);
        std::uint64_t key = 0;
        for (Bits* bits : {&q, &k, &v, &gradient}) draw(*bits, size, ++key);
        const HeadResults ours = run_head(shape, q, k, v, gradient, 0);
        const Reference exact(shape, q, k, v, gradient);
        SCOPED_TRACE(testing::Message() << length << " x " << width << ", window " << window);
        // A rounding to bf16 is 2^-9 at most, and there are two or three on the way.
        EXPECT_LT(relative_error(ours.result, exact.result), 0.004);
        EXPECT_LT(relative_error(ours.to_v, exact.to_v), 0.004);
        // With few scores what is rounded cancels out but for a little.
        const double tolerance = length < 8 ? 0.05 : 0.008;
        if (length > 1 && window > 1) {
          EXPECT_LT(relative_error(ours.to_q, exact.to_q), tolerance);
          EXPECT_LT(relative_error(ours.to_k, exact.to_k), tolerance);
        }
        for (std::size_t i = 0; i < exact.log_sums.size(); ++i)
          ASSERT_NEAR(ours.log_sums[i], exact.log_sums[i], 1e-5);
        // Nothing is read that was not written.
        EXPECT_EQ(run_head(shape, q, k, v, gradient, 0xFF), ours);
      }
    }
  }
}

// Heads side by side in one matrix, as models have them: the same as alone.
TEST_F(Bf16Dot, HeadsMayLieSideBySide) {
  const HeadShape shape = {70, 32, 20, 0.2f};
  const std::int64_t size = shape.length * shape.width, stride = 3 * shape.width + 1;
  Bits parts[4] = {Bits(size), Bits(size), Bits(size), Bits(size)};
  Bits wide(stride * shape.length);
  for (int part = 0; part < 4; ++part)
    draw(parts[part], size, 20 + static_cast<std::uint64_t>(part));
  const HeadResults alone = run_head(shape, parts[0], parts[1], parts[2], parts[3], 0);
  for (std::int64_t i = 0; i < shape.length; ++i) {
    for (std::int64_t d = 0; d < 32; ++d) {
      for (int part = 0; part < 3; ++part)
        wide[i * stride + 32 * part + d] = parts[part][i * 32 + d];
    }
  }
  Guarded<std::uint16_t> results(stride * shape.length);
  Guarded<float> log_sums(2 * shape.length);
  Guarded<std::byte> scratch(
      static_cast<std::int64_t>(std::max(forward_scratch(shape), HeadBackward::scratch(shape))));
  const Bf16Rows q = {wide.data(), stride}, k = {wide.data() + 32, stride},
                 v = {wide.data() + 64, stride};
  head_forward(shape, q, k, v, {results.data() + 32, stride}, {log_sums.data() + 1, 2},
               scratch.data());
  for (std::int64_t i = 0; i < shape.length; ++i) {
    ASSERT_EQ(log_sums[2 * i + 1], alone.log_sums[static_cast<std::size_t>(i)]);
    for (std::int64_t d = 0; d < 32; ++d)
      ASSERT_EQ(results[i * stride + 32 + d], alone.result[static_cast<std::size_t>(i * 32 + d)]);
  }
  HeadBackward backward(shape, k, v, scratch.data());
  Bits to(stride * shape.length);
  backward.add({{parts[3].data(), 32},
                q,
                {results.data() + 32, stride},
                {log_sums.data() + 1, 2},
                {to.data(), stride}});
  backward.finish({to.data() + 32, stride}, {to.data() + 64, stride});
  for (std::int64_t i = 0; i < shape.length; ++i) {
    for (std::int64_t d = 0; d < 32; ++d) {
      const auto at = static_cast<std::size_t>(i * 32 + d);
      ASSERT_EQ(to[i * stride + d], alone.to_q[at]);
      ASSERT_EQ(to[i * stride + 32 + d], alone.to_k[at]);
      ASSERT_EQ(to[i * stride + 64 + d], alone.to_v[at]);
    }
  }
}

TEST_F(Bf16Dot, NonFiniteValuesShow) {
  const HeadShape shape = {40, 16, 40, 0.25f};
  const std::int64_t size = shape.length * shape.width;
  for (const std::uint16_t bad : {0x7FC0, 0x7F80}) {  // NaN, infinity
    for (int which = 0; which < 3; ++which) {
      Bits parts[4] = {Bits(size), Bits(size), Bits(size), Bits(size)};
      for (int part = 0; part < 4; ++part)
        draw(parts[part], size, 30 + static_cast<std::uint64_t>(part));
      parts[which][20 * 16 + 3] = bad;
      const HeadResults results = run_head(shape, parts[0], parts[1], parts[2], parts[3], 0);
      const auto finite = [](std::uint16_t bits) { return std::isfinite(from_bf16(bits)); };
      const auto row = results.result.begin() + 20 * 16;
      EXPECT_FALSE(std::all_of(row, row + 16, finite)) << which;
      EXPECT_FALSE(std::all_of(results.to_q.begin(), results.to_q.end(), finite)) << which;
    }
  }
}

TEST_F(Bf16Dot, HeadsThatShareKeysAddUp) {
  const HeadShape shape = {70, 32, 70, 0.2f};
  const std::int64_t size = shape.length * shape.width;
  Bits q(size), k(size), v(size), gradient(size), other(size), to_k(size), to_v(size), to_q(size);
  std::uint64_t key = 0;
  for (Bits* bits : {&q, &k, &v, &gradient, &other}) draw(*bits, size, ++key);
  const HeadResults first = run_head(shape, q, k, v, gradient, 0);
  const HeadResults second = run_head(shape, other, k, v, gradient, 0);
  std::vector<std::byte> memory(HeadBackward::scratch(shape) + 64);
  auto* scratch = reinterpret_cast<std::byte*>(
      (reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64);
  HeadBackward backward(shape, {k.data(), 32}, {v.data(), 32}, scratch);
  const auto add = [&](Bits& query, const HeadResults& alone) {
    backward.add({{gradient.data(), 32},
                  {query.data(), 32},
                  {alone.result.data(), 32},
                  {alone.log_sums.data(), 1},
                  {to_q.data(), 32}});
    EXPECT_EQ(to_q.values(), alone.to_q);
  };
  add(q, first);
  add(other, second);
  backward.finish({to_k.data(), 32}, {to_v.data(), 32});
  for (std::int64_t i = 0; i < size; ++i) {
    const auto at = static_cast<std::size_t>(i);
    ASSERT_NEAR(from_bf16(to_k[i]), from_bf16(first.to_k[at]) + from_bf16(second.to_k[at]), 0.02);
    ASSERT_NEAR(from_bf16(to_v[i]), from_bf16(first.to_v[at]) + from_bf16(second.to_v[at]), 0.04);
  }
}

TEST_F(Bf16Dot, GradientIsSummedInFp32) {
  for (const std::int64_t positions : {1, 2, 31, 33, 256}) {
    for (const std::int64_t rows : {1, 6, 15, 96, 97, 203}) {
      for (const std::int64_t columns : {16, 64, 80, 208}) {
        for (const bool keep : {true, false}) {
          const std::int64_t stride = rows + 3;
          Bits a(positions * stride - 3), b(positions * columns);
          draw(a, positions * stride - 3, 1);
          draw(b, positions * columns, 2);
          Guarded<float> sums(rows * columns);
          for (std::int64_t i = 0; i < rows * columns; ++i)
            sums[i] = static_cast<float>(random_normal(3, static_cast<std::uint64_t>(i)));
          const std::vector<float> before = sums.values();
          GradientProduct product;
          product.a = {a.data(), stride};
          product.b = {b.data(), columns};
          product.positions = positions;
          product.rows = rows;
          product.columns = columns;
          product.sums = {sums.data(), columns};
          product.keep = keep;
          product.scale = 0.75f;
          Guarded<std::uint16_t> left(product.left_elements());
          Guarded<std::uint32_t> right(product.right_words());
          std::memset(left.data(), 0xFF, static_cast<std::size_t>(product.left_elements()) * 2);
          std::memset(right.data(), 0xFF, static_cast<std::size_t>(product.right_words()) * 4);
          for (std::int64_t part = 0; part < product.row_parts(); ++part)
            product.pack_left(part, left.data());
          for (std::int64_t part = 0; part < product.column_parts(); ++part)
            product.pack_right(part, right.data());
          for (std::int64_t part = 0; part < product.row_parts() * product.column_parts(); ++part)
            product.multiply(part / product.column_parts(), part % product.column_parts(),
                             left.data(), right.data());
          for (std::int64_t row = 0; row < rows; ++row) {
            for (std::int64_t column = 0; column < columns; ++column) {
              const auto at = static_cast<std::size_t>(row * columns + column);
              double exact = 0, size = 0;
              for (std::int64_t i = 0; i < positions; ++i) {
                const double term = double{from_bf16(a[i * stride + row])} *
                                    double{from_bf16(b[i * columns + column])};
                exact += term;
                size += std::abs(term);
              }
              exact = 0.75 * exact + (keep ? double{before[at]} : 0.0);
              ASSERT_NEAR(sums[row * columns + column], exact, 4e-6 * (size + 1))
                  << positions << " positions, " << rows << " x " << columns;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace zinf::model
