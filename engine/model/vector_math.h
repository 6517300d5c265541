// Vectors of fp32 for this room's own kernels. Compiler vectors: each
// clone of a function lowers them to what its processor has, with the same operations in the same
// order, so that bits do not depend on it. Private to kernels (.cc), which are compiled without
// contraction to fused multiply-add.
#pragma once

#include <cstdint>
#include <cstring>

#define ZINF_INLINE [[gnu::always_inline]] inline

namespace zinf::model {

template <int kLanes>
struct Vectors {
  typedef float Floats __attribute__((vector_size(4 * kLanes)));
  typedef std::int32_t Ints __attribute__((vector_size(4 * kLanes)));

  ZINF_INLINE static void load(const float* from, Floats& to) { std::memcpy(&to, from, sizeof to); }
  ZINF_INLINE static void store(const Floats& from, float* to) {
    std::memcpy(to, &from, sizeof from);
  }

  // exp(x) for x <= 0: x = n ln2 + r, a polynomial on |r| <= ln2 / 2, and n into the exponent.
  // Below -87 the result is 0 rather than subnormal; NaN stays NaN.
  ZINF_INLINE static void exp_negative(Floats& x) {
    const Floats zero = {};
    const Floats low = zero - 87.0f;
    const Ints too_low = x < low;
    const Floats clamped = too_low ? low : x;
    const Floats shifted =
        clamped * 1.44269504f + 12582912.0f;  // adding 1.5 x 2^23 rounds to the nearest integer
    const Floats n = shifted - 12582912.0f;
    const Floats r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
    Floats p = r * 1.3888889e-3f + 8.3333333e-3f;
    p = p * r + 4.1666668e-2f;
    p = p * r + 1.6666667e-1f;
    p = p * r + 0.5f;
    p = p * (r * r) + r + 1.0f;
    Ints exponent, bits;
    std::memcpy(&exponent, &shifted, sizeof exponent);  // the low bits of `shifted` hold n
    std::memcpy(&bits, &p, sizeof bits);
    bits += exponent << 23;
    Floats value;
    std::memcpy(&value, &bits, sizeof value);
    value = too_low ? zero : value;
    x = x == x ? value : x;
  }
};

}  // namespace zinf::model
