#include "engine/model/bf16_kernels.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "engine/model/aten.h"
#include "engine/model/float_convert.h"
#include "engine/model/vector_math.h"

#ifndef _OPENMP
#error "at::parallel_for is inlined from LibTorch's headers: without OpenMP it runs on one thread"
#endif

// Stages compute in bf16 where processors multiply it, and those have 512-bit vectors.
#if defined(__x86_64__)
#define ZINF_FOR_EACH_CPU __attribute__((target_clones("default", "arch=x86-64-v4")))
#else
#define ZINF_FOR_EACH_CPU
#endif

namespace zinf::model {
namespace {

constexpr std::int64_t kElementsPerTask = 16384;
constexpr std::int64_t kLanes = 16;
using V = Vectors<kLanes>;
using Floats = V::Floats;
typedef std::uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef std::uint16_t Halves __attribute__((vector_size(2 * kLanes)));

ZINF_INLINE void widen(const std::uint16_t* bf16, Floats& to) {
  Halves halves;
  std::memcpy(&halves, bf16, sizeof halves);
  const Words words = __builtin_convertvector(halves, Words) << 16;
  std::memcpy(&to, &words, sizeof to);
}

// To nearest even; NaN stays NaN.
ZINF_INLINE void narrow(const Floats& from, std::uint16_t* bf16) {
  Words bits, nan;
  std::memcpy(&bits, &from, sizeof bits);
  const V::Ints is_nan = from != from;
  std::memcpy(&nan, &is_nan, sizeof nan);
  const Words rounded = bits + 0x7FFF + ((bits >> 16) & 1);
  const Words words = (rounded & ~nan) | ((bits | 0x400000) & nan);
  const Halves halves = __builtin_convertvector(words >> 16, Halves);
  std::memcpy(bf16, &halves, sizeof halves);
}

// The last, incomplete vector of a range, filled up with zeros.
template <typename T>
struct Rest {
  Rest(const T* from, std::int64_t count) { std::copy_n(from, count, values); }
  T values[kLanes] = {};
};

template <bool kKeep>
ZINF_INLINE void accumulate_vector(float* to, const std::uint16_t* from, float scale) {
  Floats sum, add;
  widen(from, add);
  add *= scale;
  if constexpr (kKeep) {
    V::load(to, sum);
    add += sum;
  }
  V::store(add, to);
}

template <bool kKeep>
ZINF_INLINE void accumulate_range(float* to, const std::uint16_t* from, std::int64_t count,
                                  float scale) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) accumulate_vector<kKeep>(to + i, from + i, scale);
  if (i == count) return;
  Rest<float> rest(to + i, count - i);
  accumulate_vector<kKeep>(rest.values, Rest(from + i, count - i).values, scale);
  std::copy_n(rest.values, count - i, to + i);
}

ZINF_FOR_EACH_CPU void add_range(float* to, const std::uint16_t* from, std::int64_t count,
                                 float scale) {
  accumulate_range<true>(to, from, count, scale);
}
ZINF_FOR_EACH_CPU void assign_range(float* to, const std::uint16_t* from, std::int64_t count,
                                    float scale) {
  accumulate_range<false>(to, from, count, scale);
}

ZINF_FOR_EACH_CPU void narrow_range(const float* from, std::uint16_t* to, std::int64_t count) {
  Floats values;
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    V::load(from + i, values);
    narrow(values, to + i);
  }
  if (i == count) return;
  std::uint16_t rest[kLanes];
  V::load(Rest(from + i, count - i).values, values);
  narrow(values, rest);
  std::copy_n(rest, count - i, to + i);
}

ZINF_FOR_EACH_CPU void widen_range(const std::uint16_t* from, float* to, std::int64_t count) {
  accumulate_range<false>(to, from, count, 1);
}

constexpr int kColumnVectors = 4;  // a cache line of bf16 holds two

// kColumnVectors vectors of columns, or one.
template <int kVectors>
ZINF_INLINE void sum_columns(float* to, const std::uint16_t* from, std::int64_t stride,
                             std::int64_t rows, bool keep) {
  Floats sums[kVectors] = {};
  for (std::int64_t row = 0; row < rows; ++row) {
    for (int i = 0; i < kVectors; ++i) {
      Floats add;
      widen(from + row * stride + i * kLanes, add);
      sums[i] += add;
    }
  }
  for (int i = 0; i < kVectors; ++i) {
    Floats before = {};
    if (keep) V::load(to + i * kLanes, before);
    V::store(before + sums[i], to + i * kLanes);
  }
}

ZINF_FOR_EACH_CPU void sum_column_range(float* to, const std::uint16_t* from, std::int64_t stride,
                                        std::int64_t rows, std::int64_t columns, bool keep) {
  std::int64_t i = 0;
  for (; i + kColumnVectors * kLanes <= columns; i += kColumnVectors * kLanes)
    sum_columns<kColumnVectors>(to + i, from + i, stride, rows, keep);
  for (; i + kLanes <= columns; i += kLanes) sum_columns<1>(to + i, from + i, stride, rows, keep);
  for (; i < columns; ++i) {
    float sum = 0;
    for (std::int64_t row = 0; row < rows; ++row) sum += from_bf16(from[row * stride + i]);
    to[i] = keep ? to[i] + sum : sum;
  }
}

constexpr float kTwoRoot = 1.5957691216f;  // 2 sqrt(2 / pi)
constexpr float kCube = 0.044715f;

ZINF_INLINE void gate_of(const Floats& x, Floats& gate) {
  const Floats zero = {}, one = zero + 1.0f;
  const Floats z = kTwoRoot * (x + kCube * (x * x * x));
  Floats e = z < zero ? z : -z;
  V::exp_negative(e);
  gate = (z < zero ? e : one) / (one + e);
}

ZINF_INLINE void gelu_vector(const std::uint16_t* from, std::uint16_t* to) {
  Floats x, gate;
  widen(from, x);
  gate_of(x, gate);
  narrow(x * gate, to);
}

ZINF_INLINE void gelu_backward_vector(const std::uint16_t* gradient, const std::uint16_t* from,
                                      std::uint16_t* to) {
  Floats x, g, gate;
  widen(from, x);
  widen(gradient, g);
  gate_of(x, gate);
  const Floats slope = kTwoRoot * (1.0f + (3 * kCube) * (x * x));  // of the gate's argument
  narrow(g * (gate + x * gate * (1.0f - gate) * slope), to);
}

ZINF_FOR_EACH_CPU void gelu_range(const std::uint16_t* from, std::uint16_t* to,
                                  std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) gelu_vector(from + i, to + i);
  if (i == count) return;
  Rest<std::uint16_t> rest(from + i, count - i);
  gelu_vector(rest.values, rest.values);
  std::copy_n(rest.values, count - i, to + i);
}

ZINF_FOR_EACH_CPU void gelu_backward_range(const std::uint16_t* gradient, const std::uint16_t* from,
                                           std::uint16_t* to, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) gelu_backward_vector(gradient + i, from + i, to + i);
  if (i == count) return;
  Rest<std::uint16_t> rest(from + i, count - i);
  gelu_backward_vector(Rest(gradient + i, count - i).values, rest.values, rest.values);
  std::copy_n(rest.values, count - i, to + i);
}

}  // namespace

void accumulate(float* to, const std::uint16_t* from, std::int64_t count, bool keep, float scale) {
  at::parallel_for(0, count, kElementsPerTask, [&](std::int64_t begin, std::int64_t end) {
    (keep ? add_range : assign_range)(to + begin, from + begin, end - begin, scale);
  });
}

void round_to_bf16(const float* from, std::uint16_t* to, std::int64_t count) {
  at::parallel_for(0, count, kElementsPerTask, [&](std::int64_t begin, std::int64_t end) {
    narrow_range(from + begin, to + begin, end - begin);
  });
}

void widen_row(const std::uint16_t* from, float* to, std::int64_t count) {
  widen_range(from, to, count);
}

void round_row(const float* from, std::uint16_t* to, std::int64_t count) {
  narrow_range(from, to, count);
}

void accumulate_columns(float* to, const std::uint16_t* from, std::int64_t stride,
                        std::int64_t rows, std::int64_t columns, bool keep) {
  constexpr std::int64_t kColumnsPerTask = 256;
  const std::int64_t tasks = (columns + kColumnsPerTask - 1) / kColumnsPerTask;
  at::parallel_for(0, tasks, 1, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t first = begin * kColumnsPerTask;
    const std::int64_t count = std::min(end * kColumnsPerTask, columns) - first;
    sum_column_range(to + first, from + first, stride, rows, count, keep);
  });
}

void gelu_tanh(const std::uint16_t* x, std::uint16_t* y, std::int64_t count) {
  at::parallel_for(0, count, kElementsPerTask, [&](std::int64_t begin, std::int64_t end) {
    gelu_range(x + begin, y + begin, end - begin);
  });
}

void gelu_tanh_backward(const std::uint16_t* gradient, const std::uint16_t* x, std::uint16_t* to_x,
                        std::int64_t count) {
  at::parallel_for(0, count, kElementsPerTask, [&](std::int64_t begin, std::int64_t end) {
    gelu_backward_range(gradient + begin, x + begin, to_x + begin, end - begin);
  });
}

}  // namespace zinf::model
