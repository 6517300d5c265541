// Internal: sixteen lanes as two AVX2 registers (16-bit formats then fill a register too), with FMA
// and F16C. Functions as in vec_scalar.h. Only for kernels_avx2.cc.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace zinf::optim {

struct Avx2 {
  static constexpr int kWidth = 16;
  struct F {
    __m256 a, b;
  };
  struct I {
    __m256i a, b;
  };

  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, F x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
  }
  static F set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static F fma(F x, F y, F z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
  }
  static F fms(F x, F y, F z) {
    return {_mm256_fmsub_ps(x.a, y.a, z.a), _mm256_fmsub_ps(x.b, y.b, z.b)};
  }
  static F fnma(F x, F y, F z) {
    return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
  }
  static F sqrt(F x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
  static F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  static F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
  static F max_abs(F x, F y) {
    return {_mm256_max_ps(abs8(y.a), x.a), _mm256_max_ps(abs8(y.b), x.b)};
  }
  static F sign(F x) { return {sign8(x.a), sign8(x.b)}; }
  static F with_sign(F x, F y) { return {with_sign8(x.a, y.a), with_sign8(x.b, y.b)}; }
  static I add_where_nonzero(I x, I y, F z) {
    return iand(iadd(x, y), bits({nonzero8(z.a), nonzero8(z.b)}));
  }
  template <std::uint32_t kBits>
  static I add_where_bits(I x, I y, I z) {
    const I sum = iadd(x, y), found = iand(z, iset(kBits));
    const __m256i zero = _mm256_setzero_si256();
    return {_mm256_andnot_si256(_mm256_cmpeq_epi32(found.a, zero), sum.a),
            _mm256_andnot_si256(_mm256_cmpeq_epi32(found.b, zero), sum.b)};
  }
  static F min_of_nonzero(F x, F y) {
    return {_mm256_blendv_ps(x.a, _mm256_min_ps(x.a, y.a), nonzero8(y.a)),
            _mm256_blendv_ps(x.b, _mm256_min_ps(x.b, y.b), nonzero8(y.b))};
  }
  static bool any_nan(F x) {
    return _mm256_movemask_ps(_mm256_cmp_ps(x.a, x.b, _CMP_UNORD_Q)) != 0;
  }
  using Ordered = __m256;
  static Ordered all_ordered() { return _mm256_castsi256_ps(_mm256_set1_epi32(-1)); }
  static Ordered still_ordered(Ordered so_far, F x, F y) {
    const __m256 both =
        _mm256_and_ps(_mm256_cmp_ps(x.a, x.b, _CMP_ORD_Q), _mm256_cmp_ps(y.a, y.b, _CMP_ORD_Q));
    return _mm256_and_ps(so_far, both);
  }
  static bool is_all(Ordered x) { return _mm256_movemask_ps(x) == 0xFF; }
  static float max_lane(F x) {
    const __m256 eight = _mm256_max_ps(x.a, x.b);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
  }
  static float min_lane(F x) {
    return -max_lane(
        {_mm256_xor_ps(x.a, _mm256_set1_ps(-0.0f)), _mm256_xor_ps(x.b, _mm256_set1_ps(-0.0f))});
  }

  static I bits(F x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
  static F from_bits(I x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
  static I iset(std::uint32_t x) {
    return {_mm256_set1_epi32(static_cast<int>(x)), _mm256_set1_epi32(static_cast<int>(x))};
  }
  static I lanes() {
    return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
            _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
  }
  static I iadd(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
  static I isub(I x, I y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
  static I imul(I x, I y) { return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)}; }
  static I iand(I x, I y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
  static I ior(I x, I y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
  static I ixor(I x, I y) { return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
  static I select(std::uint32_t mask, I x, I y) {
    return ior(iand(x, iset(mask)), iand(y, iset(~mask)));
  }
  template <int kBits>
  static I shl(I x) {
    return {_mm256_slli_epi32(x.a, kBits), _mm256_slli_epi32(x.b, kBits)};
  }
  template <int kBits>
  static I shr(I x) {
    return {_mm256_srli_epi32(x.a, kBits), _mm256_srli_epi32(x.b, kBits)};
  }
  static void istore(std::uint32_t* p, I x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.b);
  }
  static I iload(const std::uint32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
  }

  static I load_packed(const void* p) {
    const auto* lanes = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(lanes), _mm256_loadu_si256(lanes + 1)};
  }
  static void store_packed(void* p, I x) {
    auto* lanes = static_cast<__m256i*>(p);
    _mm256_storeu_si256(lanes, x.a);
    _mm256_storeu_si256(lanes + 1, x.b);
  }
  static I add_words(I x, I y) { return {_mm256_add_epi16(x.a, y.a), _mm256_add_epi16(x.b, y.b)}; }
  template <int kBits>
  static I shl_words(I x) {
    return {_mm256_slli_epi16(x.a, kBits), _mm256_slli_epi16(x.b, kBits)};
  }
  template <int kBits>
  static I shr_words(I x) {
    return {_mm256_srli_epi16(x.a, kBits), _mm256_srli_epi16(x.b, kBits)};
  }
  static I sign_words(I x) { return {_mm256_srai_epi16(x.a, 15), _mm256_srai_epi16(x.b, 15)}; }
  static F evens(F x, F y) { return {half8<0x88>(x.a, x.b), half8<0x88>(y.a, y.b)}; }
  static F odds(F x, F y) { return {half8<0xDD>(x.a, x.b), half8<0xDD>(y.a, y.b)}; }
  static F zip_low(F even, F odd) { return zip8(even.a, odd.a); }
  static F zip_high(F even, F odd) { return zip8(even.b, odd.b); }

  static I load_u16(const void* p) {
    const auto* words = static_cast<const __m128i*>(p);
    return {_mm256_cvtepu16_epi32(_mm_loadu_si128(words)),
            _mm256_cvtepu16_epi32(_mm_loadu_si128(words + 1))};
  }
  static I load_s16(const void* p) {
    const auto* words = static_cast<const __m128i*>(p);
    return {_mm256_cvtepi16_epi32(_mm_loadu_si128(words)),
            _mm256_cvtepi16_epi32(_mm_loadu_si128(words + 1))};
  }
  static void store_low_16(void* p, I x) { store_words(p, iand(x, iset(0xFFFFu))); }
  static void store_high_16(void* p, I x) { store_words(p, shr<16>(x)); }
  static F to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
  static I truncate(F x) { return {_mm256_cvttps_epi32(x.a), _mm256_cvttps_epi32(x.b)}; }
  static I to_fp16(F x) {
    constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_cvtepu16_epi32(_mm256_cvtps_ph(x.a, kMode)),
            _mm256_cvtepu16_epi32(_mm256_cvtps_ph(x.b, kMode))};
  }
  static F from_fp16(I h) {
    const __m256i words = pack_words(h);
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(words)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(words, 1))};
  }

 private:
  static __m256 abs8(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
  static __m256 sign8(__m256 x) {
    const __m256 one = _mm256_or_ps(_mm256_and_ps(x, _mm256_set1_ps(-0.0f)), _mm256_set1_ps(1.0f));
    return _mm256_and_ps(one, nonzero8(x));
  }
  static __m256 with_sign8(__m256 x, __m256 y) {
    return _mm256_or_ps(x, _mm256_and_ps(y, _mm256_set1_ps(-0.0f)));
  }
  static __m256 nonzero8(__m256 x) { return _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_NEQ_UQ); }
  // Even or odd elements of sixteen; the low or high half of eight pairs.
  template <int kWhich>
  static __m256 half8(__m256 x, __m256 y) {
    const __m256d mixed = _mm256_castps_pd(_mm256_shuffle_ps(x, y, kWhich));
    return _mm256_castpd_ps(_mm256_permute4x64_pd(mixed, 0xD8));
  }
  static F zip8(__m256 even, __m256 odd) {
    const __m256 low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
    return {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
  }
  // Sixteen lanes below 2^16 as words, in order.
  static __m256i pack_words(I x) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(x.a, x.b), 0xD8);
  }
  static void store_words(void* p, I x) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), pack_words(x));
  }
};

}  // namespace zinf::optim
