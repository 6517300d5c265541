// Internal: sixteen lanes of AVX-512 (F, BW, DQ, VL). Functions as in vec_scalar.h. Only for
// kernels_avx512.cc. The bf16 conversion instructions take denormals as zero, so the integer way of
// the other sets is used here too.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace zinf::optim {

struct Avx512 {
  static constexpr int kWidth = 16;
  using F = __m512;
  using I = __m512i;

  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F set(float x) { return _mm512_set1_ps(x); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F fms(F a, F b, F c) { return _mm512_fmsub_ps(a, b, c); }
  static F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  static F sqrt(F a) { return _mm512_sqrt_ps(a); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F max_abs(F a, F b) { return _mm512_range_ps(a, b, 0x0B); }
  static F sign(F a) {
    const I one = ior(iand(bits(a), iset(0x80000000u)), iset(0x3F800000u));
    return from_bits(_mm512_maskz_mov_epi32(nonzero(a), one));
  }
  static F with_sign(F a, F b) { return from_bits(select(0x80000000u, bits(b), bits(a))); }
  static I add_where_nonzero(I a, I b, F c) { return _mm512_maskz_add_epi32(nonzero(c), a, b); }
  template <std::uint32_t kBits>
  static I add_where_bits(I a, I b, I c) {
    return _mm512_maskz_add_epi32(_mm512_test_epi32_mask(c, iset(kBits)), a, b);
  }
  static I min_unsigned(I a, I b) { return _mm512_min_epu32(a, b); }
  static bool any_nan(F a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) != 0; }
  using Ordered = __mmask16;
  static Ordered all_ordered() { return 0xFFFF; }
  static Ordered still_ordered(Ordered so_far, F a, F b) {
    return _mm512_mask_cmp_ps_mask(so_far, a, b, _CMP_ORD_Q);
  }
  static bool is_all(Ordered x) { return x == 0xFFFF; }
  static float max_lane(F a) { return _mm512_reduce_max_ps(a); }
  static float min_lane(F a) { return _mm512_reduce_min_ps(a); }

  static I bits(F a) { return _mm512_castps_si512(a); }
  static F from_bits(I a) { return _mm512_castsi512_ps(a); }
  static I iset(std::uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static I lanes() {
    return _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  }
  static I iadd(I a, I b) { return _mm512_add_epi32(a, b); }
  static I isub(I a, I b) { return _mm512_sub_epi32(a, b); }
  static I imul(I a, I b) { return _mm512_mullo_epi32(a, b); }
  static I iand(I a, I b) { return _mm512_and_si512(a, b); }
  static I ior(I a, I b) { return _mm512_or_si512(a, b); }
  static I ixor(I a, I b) { return _mm512_xor_si512(a, b); }
  static I select(std::uint32_t mask, I a, I b) {
    return _mm512_ternarylogic_epi32(iset(mask), a, b, 0xCA);
  }
  template <int kBits>
  static I shl(I a) {
    return _mm512_slli_epi32(a, kBits);
  }
  template <int kBits>
  static I shr(I a) {
    return _mm512_srli_epi32(a, kBits);
  }
  static void istore(std::uint32_t* p, I x) { _mm512_storeu_si512(p, x); }
  static I iload(const std::uint32_t* p) { return _mm512_loadu_si512(p); }

  static I load_packed(const void* p) { return _mm512_loadu_si512(p); }
  static void store_packed(void* p, I x) { _mm512_storeu_si512(p, x); }
  static I add_words(I a, I b) { return _mm512_add_epi16(a, b); }
  template <int kBits>
  static I shl_words(I a) {
    return _mm512_slli_epi16(a, kBits);
  }
  template <int kBits>
  static I shr_words(I a) {
    return _mm512_srli_epi16(a, kBits);
  }
  static I sign_words(I a) { return _mm512_srai_epi16(a, 15); }
  static void load_even_odd(const float* p, F& even, F& odd) {
    const F x = load(p), y = load(p + kWidth);
    const I order = iadd(lanes(), lanes());
    even = _mm512_permutex2var_ps(x, order, y);
    odd = _mm512_permutex2var_ps(x, iadd(order, iset(1)), y);
  }
  static F zip_low(F even, F odd) { return _mm512_permutex2var_ps(even, zip_order(0), odd); }
  static F zip_high(F even, F odd) { return _mm512_permutex2var_ps(even, zip_order(8), odd); }

  static I load_u16(const void* p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  static I load_s16(const void* p) {
    return _mm512_cvtepi16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  static void store_low_16(void* p, I x) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x));
  }
  static void store_high_16(void* p, I x) { store_low_16(p, shr<16>(x)); }
  static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
  static I truncate(F a) { return _mm512_cvttps_epi32(a); }

  static I to_fp16(F x) {
    return _mm512_cvtepu16_epi32(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static F from_fp16(I h) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(h)); }

 private:
  // 0, 16, 1, 17, ... from `first` on.
  static I zip_order(std::uint32_t first) {
    const I half = shr<1>(lanes());
    return iadd(ior(half, shl<4>(iand(lanes(), iset(1)))), iset(first));
  }
  static __mmask16 nonzero(F a) { return _mm512_cmp_ps_mask(a, _mm512_setzero_ps(), _CMP_NEQ_UQ); }
};

}  // namespace zinf::optim
