// Stands in for the compiler's header when the AVX-512 source is built for a processor without
// AVX-512: SIMDe's portable versions, and plain loops for the few functions that its packaged
// version lacks. For the test build only.
#pragma once

#include_next <immintrin.h>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulated {

template <typename To, typename From>
To copy(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// Lane by lane: to[i] = op(from[i]).
template <typename To, typename ToLane, typename FromLane, int kLanes, typename From, typename Op>
To each(const From& from, Op op) {
  static_assert(sizeof(From) == kLanes * sizeof(FromLane) && sizeof(To) == kLanes * sizeof(ToLane));
  FromLane in[kLanes];
  ToLane out[kLanes];
  std::memcpy(in, &from, sizeof in);
  for (int i = 0; i < kLanes; ++i) out[i] = op(in[i]);
  To to;
  std::memcpy(&to, out, sizeof to);
  return to;
}

template <typename To, typename ToLane, typename FromLane, int kLanes, typename From>
To convert(const From& from) {
  return each<To, ToLane, FromLane, kLanes>(from,
                                            [](FromLane x) { return static_cast<ToLane>(x); });
}

inline __m512i mm512_cvtepu16_epi32(__m256i x) {
  return convert<__m512i, std::int32_t, std::uint16_t, 16>(x);
}
inline __m512i mm512_cvtepi16_epi32(__m256i x) {
  return convert<__m512i, std::int32_t, std::int16_t, 16>(x);
}
inline __m256i mm512_cvtepi32_epi16(__m512i x) {
  return convert<__m256i, std::uint16_t, std::uint32_t, 16>(x);
}
inline __m512 mm512_cvtepi32_ps(__m512i x) { return convert<__m512, float, std::int32_t, 16>(x); }
inline __m512i mm512_cvttps_epi32(__m512 x) { return convert<__m512i, std::int32_t, float, 16>(x); }
inline __m512d mm512_cvtps_pd(__m256 x) { return convert<__m512d, double, float, 8>(x); }
inline float mm512_reduce_max_ps(__m512 x) {
  float lanes[16];
  std::memcpy(lanes, &x, sizeof lanes);
  float most = lanes[0];
  for (const float lane : lanes) most = most > lane ? most : lane;
  return most;
}
inline float mm512_reduce_min_ps(__m512 x) {
  float lanes[16];
  std::memcpy(lanes, &x, sizeof lanes);
  float least = lanes[0];
  for (const float lane : lanes) least = least < lane ? least : lane;
  return least;
}
// Halves of eight lanes by F16C.
inline __m256i mm512_cvtps_ph(__m512 x, int) {
  __m256 half[2];
  __m128i out[2];
  std::memcpy(half, &x, sizeof half);
  for (int i = 0; i < 2; ++i) out[i] = _mm256_cvtps_ph(half[i], SIMDE_MM_FROUND_TO_NEAREST_INT);
  __m256i to;
  std::memcpy(&to, out, sizeof to);
  return to;
}
inline __m512 mm512_cvtph_ps(__m256i x) {
  __m128i half[2];
  __m256 out[2];
  std::memcpy(half, &x, sizeof half);
  for (int i = 0; i < 2; ++i) out[i] = _mm256_cvtph_ps(half[i]);
  __m512 to;
  std::memcpy(&to, out, sizeof to);
  return to;
}

}  // namespace emulated

#undef _mm512_mask_cmp_ps_mask
#define _mm512_mask_cmp_ps_mask(k, a, b, op) \
  static_cast<__mmask16>((k)&simde_mm512_cmp_ps_mask(a, b, op))
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32 emulated::mm512_cvtepu16_epi32
#undef _mm512_cvtepi16_epi32
#define _mm512_cvtepi16_epi32 emulated::mm512_cvtepi16_epi32
#undef _mm512_cvtepi32_epi16
#define _mm512_cvtepi32_epi16 emulated::mm512_cvtepi32_epi16
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps emulated::mm512_cvtepi32_ps
#undef _mm512_cvttps_epi32
#define _mm512_cvttps_epi32 emulated::mm512_cvttps_epi32
#undef _mm512_cvtps_pd
#define _mm512_cvtps_pd emulated::mm512_cvtps_pd
#undef _mm512_reduce_max_ps
#define _mm512_reduce_max_ps emulated::mm512_reduce_max_ps
#undef _mm512_reduce_min_ps
#define _mm512_reduce_min_ps emulated::mm512_reduce_min_ps
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph emulated::mm512_cvtps_ph
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps emulated::mm512_cvtph_ps
