// Internal: one-lane vectors. The reference for the other instruction sets: the same functions, the
// same bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace zinf::optim {

struct Scalar {
  static constexpr int kWidth = 1;
  using F = float;
  using I = std::uint32_t;
  using D = double;

  static F load(const float* p) { return *p; }
  static void store(float* p, F x) { *p = x; }
  static F set(float x) { return x; }
  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F div(F a, F b) { return a / b; }
  static F fma(F a, F b, F c) { return std::fma(a, b, c); }    // a b + c
  static F fms(F a, F b, F c) { return std::fma(a, b, -c); }   // a b - c
  static F fnma(F a, F b, F c) { return std::fma(-a, b, c); }  // c - a b
  static F sqrt(F a) { return std::sqrt(a); }
  static F min(F a, F b) { return a < b ? a : b; }  // b where either is NaN, as x86 does
  static F max(F a, F b) { return a > b ? a : b; }
  // The larger of a >= 0 and |b|.
  static F max_abs(F a, F b) { return max(std::bit_cast<F>(std::bit_cast<I>(b) & 0x7FFFFFFFu), a); }
  // -1, 0 or 1.
  static F sign(F a) {
    return a != 0.0f ? std::bit_cast<F>((std::bit_cast<I>(a) & 0x80000000u) | 0x3F800000u) : 0.0f;
  }
  // a >= 0 with b's sign.
  static F with_sign(F a, F b) {
    return std::bit_cast<F>(std::bit_cast<I>(a) | (std::bit_cast<I>(b) & 0x80000000u));
  }
  // a + b, but 0 where c is 0. c has no sign.
  static I add_where_nonzero(I a, I b, F c) { return c != 0.0f ? a + b : 0; }
  // a + b, but 0 where none of these bits of c is set. The sign is none of them.
  template <std::uint32_t kBits>
  static I add_where_bits(I a, I b, I c) {
    return (c & kBits) != 0 ? a + b : 0;
  }
  static I min_unsigned(I a, I b) { return a < b ? a : b; }
  static bool any_nan(F a) { return a != a; }
  // Whether no lane of any vector so far is a NaN, lane by lane.
  using Ordered = bool;
  static Ordered all_ordered() { return true; }
  static Ordered still_ordered(Ordered so_far, F a, F b) { return so_far & (a == a) & (b == b); }
  static bool is_all(Ordered x) { return x; }
  static float max_lane(F a) { return a; }
  static float min_lane(F a) { return a; }

  static I bits(F a) { return std::bit_cast<I>(a); }
  static F from_bits(I a) { return std::bit_cast<F>(a); }
  static I iset(std::uint32_t x) { return x; }
  static I lanes() { return 0; }
  static I iadd(I a, I b) { return a + b; }
  static I isub(I a, I b) { return a - b; }
  static I imul(I a, I b) { return a * b; }
  static I iand(I a, I b) { return a & b; }
  static I ior(I a, I b) { return a | b; }
  static I ixor(I a, I b) { return a ^ b; }
  // a where the mask's bits are set, b elsewhere.
  static I select(std::uint32_t mask, I a, I b) { return (a & mask) | (b & ~mask); }
  template <int kBits>
  static I shl(I a) {
    return a << kBits;
  }
  template <int kBits>
  static I shr(I a) {
    return a >> kBits;
  }
  static void istore(std::uint32_t* p, I x) { *p = x; }
  static I iload(const std::uint32_t* p) { return *p; }

  // Lanes as 2 words or 4 bytes that lie one after the other in memory, the first in the low bits.
  static I load_packed(const void* p) {
    I x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  static void store_packed(void* p, I x) { std::memcpy(p, &x, sizeof x); }
  // On both words of each lane: sum, shifts, the sign bit in all 16 bits.
  static I add_words(I a, I b) {
    return ((a + (b & 0xFFFF0000u)) & 0xFFFF0000u) | ((a + b) & 0xFFFFu);
  }
  template <int kBits>
  static I shl_words(I a) {
    return (a << kBits) & (0x00010001u * (0xFFFFu << kBits & 0xFFFFu));
  }
  template <int kBits>
  static I shr_words(I a) {
    return (a >> kBits) & (0x00010001u * (0xFFFFu >> kBits));
  }
  static I sign_words(I a) { return (a >> 15 & 0x00010001u) * 0xFFFFu; }
  // The even and the odd elements of two vectors in memory, and the two from these.
  static void load_even_odd(const float* p, F& even, F& odd) {
    even = p[0];
    odd = p[1];
  }
  static F zip_low(F even, F) { return even; }
  static F zip_high(F, F odd) { return odd; }

  static I load_u16(const void* p) { return *static_cast<const std::uint16_t*>(p); }
  static I load_s16(const void* p) {
    return static_cast<I>(static_cast<std::int32_t>(*static_cast<const std::int16_t*>(p)));
  }
  // 16 bits of each lane.
  static void store_low_16(void* p, I x) {
    *static_cast<std::uint16_t*>(p) = static_cast<std::uint16_t>(x);
  }
  static void store_high_16(void* p, I x) { store_low_16(p, x >> 16); }
  static F to_float(I a) { return static_cast<F>(static_cast<std::int32_t>(a)); }
  // Towards zero; |a| < 2^31.
  static I truncate(F a) { return static_cast<I>(static_cast<std::int32_t>(a)); }

  // fp16, as the hardware converts: nearest even, NaN made quiet with the top of its payload.
  static I to_fp16(F x) {
    const I all = std::bit_cast<I>(x);
    const I sign = (all >> 16) & 0x8000u;
    const I magnitude = all & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu);
    if (magnitude >= 0x47800000u)
      return sign | 0x7C00u;  // 65,536 and above; 65,520 and above round up to it
    if (magnitude <
        0x38800000u) {  // below 2^-14: an integer multiple of 2^-24, by one rounding addition
      const F shifted = std::bit_cast<F>(magnitude) + 0.5f;
      return sign | (std::bit_cast<I>(shifted) - 0x3F000000u);
    }
    const I rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
    return sign | ((rounded - 0x38000000u) >> 13);
  }
  static F from_fp16(I h) {
    const I sign = (h & 0x8000u) << 16;
    const I exponent = (h >> 10) & 0x1Fu;
    const I fraction = h & 0x3FFu;
    if (exponent == 0x1Fu) {
      return std::bit_cast<F>(sign | 0x7F800000u | (fraction << 13) |
                              (fraction != 0 ? 0x400000u : 0u));
    }
    if (exponent == 0) {
      const F value = static_cast<F>(fraction) * 0x1.0p-24f;
      return std::bit_cast<F>(sign | std::bit_cast<I>(value));
    }
    return std::bit_cast<F>(sign | ((exponent + 112u) << 23) | (fraction << 13));
  }
};

}  // namespace zinf::optim
