// Internal: eight lanes of AVX2, with FMA and F16C. Functions as in vec_scalar.h. Only for
// kernels_avx2.cc. A vector is one register, not two: kernels hold many pairs of vectors, and there
// are 16 registers.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace zinf::optim {

struct Avx2 {
  static constexpr int kWidth = 8;
  using F = __m256;
  using I = __m256i;

  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static F set(float x) { return _mm256_set1_ps(x); }
  static F add(F x, F y) { return _mm256_add_ps(x, y); }
  static F sub(F x, F y) { return _mm256_sub_ps(x, y); }
  static F mul(F x, F y) { return _mm256_mul_ps(x, y); }
  static F div(F x, F y) { return _mm256_div_ps(x, y); }
  static F fma(F x, F y, F z) { return _mm256_fmadd_ps(x, y, z); }
  static F fms(F x, F y, F z) { return _mm256_fmsub_ps(x, y, z); }
  static F fnma(F x, F y, F z) { return _mm256_fnmadd_ps(x, y, z); }
  static F sqrt(F x) { return _mm256_sqrt_ps(x); }
  static F min(F x, F y) { return _mm256_min_ps(x, y); }
  static F max(F x, F y) { return _mm256_max_ps(x, y); }
  static F max_abs(F x, F y) { return _mm256_max_ps(_mm256_andnot_ps(set(-0.0f), y), x); }
  static F sign(F x) {
    const F one = _mm256_or_ps(_mm256_and_ps(x, set(-0.0f)), set(1.0f));
    return _mm256_and_ps(one, nonzero(x));
  }
  static F with_sign(F x, F y) { return _mm256_or_ps(x, _mm256_and_ps(y, set(-0.0f))); }
  // vpsignd: 0 where the other is 0, unchanged where it is positive.
  static I add_where_nonzero(I x, I y, F z) { return _mm256_sign_epi32(iadd(x, y), bits(z)); }
  template <std::uint32_t kBits>
  static I add_where_bits(I x, I y, I z) {
    return _mm256_sign_epi32(iadd(x, y), iand(z, iset(kBits)));
  }
  static I min_unsigned(I x, I y) { return _mm256_min_epu32(x, y); }
  static bool any_nan(F x) { return _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) != 0; }
  using Ordered = __m256;
  static Ordered all_ordered() { return _mm256_castsi256_ps(_mm256_set1_epi32(-1)); }
  static Ordered still_ordered(Ordered so_far, F x, F y) {
    return _mm256_and_ps(so_far, _mm256_cmp_ps(x, y, _CMP_ORD_Q));
  }
  static bool is_all(Ordered x) { return _mm256_movemask_ps(x) == 0xFF; }
  static float max_lane(F x) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
  }
  static float min_lane(F x) { return -max_lane(_mm256_xor_ps(x, set(-0.0f))); }

  static I bits(F x) { return _mm256_castps_si256(x); }
  static F from_bits(I x) { return _mm256_castsi256_ps(x); }
  static I iset(std::uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  static I lanes() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
  static I iadd(I x, I y) { return _mm256_add_epi32(x, y); }
  static I isub(I x, I y) { return _mm256_sub_epi32(x, y); }
  static I imul(I x, I y) { return _mm256_mullo_epi32(x, y); }
  static I iand(I x, I y) { return _mm256_and_si256(x, y); }
  static I ior(I x, I y) { return _mm256_or_si256(x, y); }
  static I ixor(I x, I y) { return _mm256_xor_si256(x, y); }
  // The mask is known to the compiler: one instruction where it takes whole words.
  [[gnu::always_inline]] static I select(std::uint32_t mask, I x, I y) {
    if (mask == 0xFFFF0000u) return _mm256_blend_epi16(y, x, 0xAA);
    return ior(iand(x, iset(mask)), iand(y, iset(~mask)));
  }
  template <int kBits>
  static I shl(I x) {
    return _mm256_slli_epi32(x, kBits);
  }
  template <int kBits>
  static I shr(I x) {
    return _mm256_srli_epi32(x, kBits);
  }
  static void istore(std::uint32_t* p, I x) { store_packed(p, x); }
  static I iload(const std::uint32_t* p) { return load_packed(p); }

  static I load_packed(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static void store_packed(void* p, I x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
  static I add_words(I x, I y) { return _mm256_add_epi16(x, y); }
  template <int kBits>
  static I shl_words(I x) {
    return _mm256_slli_epi16(x, kBits);
  }
  template <int kBits>
  static I shr_words(I x) {
    return _mm256_srli_epi16(x, kBits);
  }
  static I sign_words(I x) { return _mm256_srai_epi16(x, 15); }
  static void load_even_odd(const float* p, F& even, F& odd) {
    const F x =
        _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + 8), 1);
    const F y =
        _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p + 4)), _mm_loadu_ps(p + 12), 1);
    even = _mm256_shuffle_ps(x, y, 0x88);
    odd = _mm256_shuffle_ps(x, y, 0xDD);
  }
  static F zip_low(F even, F odd) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd),
                                  0x20);
  }
  static F zip_high(F even, F odd) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd),
                                  0x31);
  }

  static I load_u16(const void* p) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static I load_s16(const void* p) {
    return _mm256_cvtepi16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static void store_low_16(void* p, I x) { store_words(p, iand(x, iset(0xFFFFu))); }
  static void store_high_16(void* p, I x) { store_words(p, shr<16>(x)); }
  static F to_float(I x) { return _mm256_cvtepi32_ps(x); }
  static I truncate(F x) { return _mm256_cvttps_epi32(x); }
  static I to_fp16(F x) {
    return _mm256_cvtepu16_epi32(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static F from_fp16(I h) { return _mm256_cvtph_ps(pack_words(h)); }

 private:
  static F nonzero(F x) { return _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_NEQ_UQ); }
  // Eight lanes below 2^16 as words, in order.
  static __m128i pack_words(I x) {
    return _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  }
  static void store_words(void* p, I x) {
    _mm_storeu_si128(static_cast<__m128i*>(p), pack_words(x));
  }
};

}  // namespace zinf::optim
