// The processor's bf16 dot products (AVX512-BF16), and how operands are packed for them. Private to
// sources that are compiled for it and called only where the processor has it
// (has_bf16_dot_products()). What they share with other sources is inlined always, so that the
// linker can't take a function that was compiled for it for others. These instructions take
// subnormal numbers for zero.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "engine/model/bf16_rows.h"
#include "engine/model/vector_math.h"

namespace zinf::model {

namespace {

constexpr std::int64_t kLanes = 16;
constexpr std::int64_t kPanel = 64;    // columns of a product that are computed together
constexpr std::int64_t kTileRows = 6;  // with four vectors of columns: 24 sums in registers

inline std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
inline std::int64_t most(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
inline std::int64_t padded(std::int64_t count, std::int64_t to) {
  return (count + to - 1) / to * to;
}

// The lanes of a vector that are in [from, to), both relative to its first lane.
ZINF_INLINE __mmask16 lanes(std::int64_t from, std::int64_t to) {
  const auto below = [](std::int64_t end) {
    return (std::uint32_t{1} << least(most(end, 0), kLanes)) - 1;
  };
  return static_cast<__mmask16>(below(to) & ~below(from));
}

ZINF_INLINE __m512 widen(__mmask16 there, const std::uint16_t* from) {
  const __m256i halves = _mm256_maskz_loadu_epi16(there, from);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
ZINF_INLINE __m512 widen(const std::uint16_t* from) { return widen(0xFFFF, from); }

ZINF_INLINE __m256i rounded(__m512 values) { return (__m256i)_mm512_cvtneps_pbh(values); }
ZINF_INLINE void store_rounded(__m512 values, std::uint16_t* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), rounded(values));
}

// Two rows of bf16 as one of words, the first in the lower halves.
ZINF_INLINE __m512i paired(__m256i first, __m256i second) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(first),
                         _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16));
}

// --- Products. A dot product instruction adds up pairs: of `a` [rows, 2 x pairs], pairs are along
// rows; `b` [pairs, columns] holds a pair in each word. ---

struct Left {
  const std::uint16_t* data;
  std::int64_t stride, rows;
};
struct Right {
  const std::uint32_t* data;
  std::int64_t stride, columns;  // columns: a multiple of 16
};

// Not inlined: the caller's own values would take registers from the sums.
template <bool kAdd, int kRows, int kVectors>
[[gnu::noinline]] void product_tile(const std::uint16_t* a, std::int64_t a_stride,
                                    const std::uint32_t* b, std::int64_t b_stride,
                                    std::int64_t pairs, float* c, std::int64_t c_stride,
                                    float scale) {
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      sums[row][i] = _mm512_setzero_ps();
      // Results may be far larger than the caches, so the next rows' are asked for ahead.
      _mm_prefetch(c + (row + kRows) * c_stride + i * kLanes, _MM_HINT_T0);
    }
  }
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    if (pair % 16 == 0) {  // a cache line further along each row
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row)
        _mm_prefetch(a + (row + kRows) * a_stride + 2 * pair, _MM_HINT_T0);
    }
    __m512bh right[kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i)
      right[i] = (__m512bh)_mm512_loadu_si512(b + pair * b_stride + i * kLanes);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      std::int32_t word;
      std::memcpy(&word, a + row * a_stride + 2 * pair, sizeof word);
      const auto left = (__m512bh)_mm512_set1_epi32(word);
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i)
        sums[row][i] = _mm512_dpbf16_ps(sums[row][i], left, right[i]);
    }
  }
  const __m512 factor = _mm512_set1_ps(scale);
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      float* const to = c + row * c_stride + i * kLanes;
      const __m512 scaled = kAdd ? _mm512_fmadd_ps(sums[row][i], factor, _mm512_loadu_ps(to))
                                 : _mm512_mul_ps(sums[row][i], factor);
      _mm512_storeu_ps(to, scaled);
    }
  }
}

template <bool kAdd, int kVectors>
void product_panel(Left a, const std::uint32_t* b, std::int64_t b_stride, std::int64_t pairs,
                   FloatResults c, float scale) {
  std::int64_t row = 0;
  for (; row + kTileRows <= a.rows; row += kTileRows) {
    product_tile<kAdd, kTileRows, kVectors>(a.data + row * a.stride, a.stride, b, b_stride, pairs,
                                            c.data + row * c.stride, c.stride, scale);
  }
  for (; row < a.rows; ++row) {
    product_tile<kAdd, 1, kVectors>(a.data + row * a.stride, a.stride, b, b_stride, pairs,
                                    c.data + row * c.stride, c.stride, scale);
  }
}

// c = scale a b, or += where kAdd.
template <bool kAdd>
void product(Left a, Right b, std::int64_t pairs, FloatResults c, float scale = 1) {
  for (std::int64_t column = 0; column < b.columns; column += kPanel) {
    const std::uint32_t* from = b.data + column;
    const FloatResults to = {c.data + column, c.stride};
    switch (least(kPanel, b.columns - column) / kLanes) {
      case 4:
        product_panel<kAdd, 4>(a, from, b.stride, pairs, to, scale);
        break;
      case 3:
        product_panel<kAdd, 3>(a, from, b.stride, pairs, to, scale);
        break;
      case 2:
        product_panel<kAdd, 2>(a, from, b.stride, pairs, to, scale);
        break;
      default:
        product_panel<kAdd, 1>(a, from, b.stride, pairs, to, scale);
    }
  }
}

// --- Packing what stands on the right of a product. ---

// 16 x 16 words: rows become columns.
ZINF_INLINE void transpose(__m512i* rows) {
  __m512i quads[kLanes];  // [group of four rows][column of each 128 bits]
#pragma GCC unroll 4
  for (int group = 0; group < kLanes; group += 4) {
    const __m512i* from = rows + group;
    const __m512i low01 = _mm512_unpacklo_epi32(from[0], from[1]);
    const __m512i high01 = _mm512_unpackhi_epi32(from[0], from[1]);
    const __m512i low23 = _mm512_unpacklo_epi32(from[2], from[3]);
    const __m512i high23 = _mm512_unpackhi_epi32(from[2], from[3]);
    quads[group] = _mm512_unpacklo_epi64(low01, low23);
    quads[group + 1] = _mm512_unpackhi_epi64(low01, low23);
    quads[group + 2] = _mm512_unpacklo_epi64(high01, high23);
    quads[group + 3] = _mm512_unpackhi_epi64(high01, high23);
  }
#pragma GCC unroll 4
  for (int column = 0; column < 4; ++column) {
    const __m512i* from = quads + column;
    const __m512i first_low = _mm512_shuffle_i32x4(from[0], from[4], 0x44);
    const __m512i first_high = _mm512_shuffle_i32x4(from[0], from[4], 0xEE);
    const __m512i last_low = _mm512_shuffle_i32x4(from[8], from[12], 0x44);
    const __m512i last_high = _mm512_shuffle_i32x4(from[8], from[12], 0xEE);
    rows[column] = _mm512_shuffle_i32x4(first_low, last_low, 0x88);
    rows[column + 4] = _mm512_shuffle_i32x4(first_low, last_low, 0xDD);
    rows[column + 8] = _mm512_shuffle_i32x4(first_high, last_high, 0x88);
    rows[column + 12] = _mm512_shuffle_i32x4(first_high, last_high, 0xDD);
  }
}

// to[pair of the width][row]: `count` rows from `first` on, filled up with zeros to `columns`.
inline void pack_columns(Bf16Rows from, std::int64_t first, std::int64_t count, std::int64_t width,
                         std::uint32_t* to, std::int64_t stride, std::int64_t columns) {
  for (std::int64_t column = 0; column < columns; column += kLanes) {
    for (std::int64_t word = 0; word < width / 2; word += kLanes) {
      const __mmask16 words = lanes(0, width / 2 - word);
      __m512i block[kLanes];
      for (std::int64_t i = 0; i < kLanes; ++i) {
        block[i] = column + i < count
                       ? _mm512_maskz_loadu_epi32(words, from.row(first + column + i) + 2 * word)
                       : _mm512_setzero_si512();
      }
      transpose(block);
      const std::int64_t kept = least(kLanes, width / 2 - word);
      for (std::int64_t i = 0; i < kept; ++i)
        _mm512_storeu_si512(to + (word + i) * stride + column, block[i]);
    }
  }
}

// 16 elements of a row from `at` on; zeros beyond the last row and the width.
ZINF_INLINE __m256i row_or_zero(Bf16Rows from, std::int64_t row, std::int64_t end, std::int64_t at,
                                std::int64_t width) {
  if (row >= end) return _mm256_setzero_si256();
  return _mm256_maskz_loadu_epi16(lanes(0, width - at), from.row(row) + at);
}

// to[pair of rows][width]: `count` rows from `first` on, filled up with zeros to `pairs` pairs and
// to 16 columns.
inline void pack_rows(Bf16Rows from, std::int64_t first, std::int64_t count, std::int64_t width,
                      std::uint32_t* to, std::int64_t stride, std::int64_t pairs) {
  const std::int64_t end = first + count;
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    const std::int64_t row = first + 2 * pair;
    for (std::int64_t at = 0; at < width; at += kLanes) {
      _mm512_storeu_si512(to + pair * stride + at,
                          paired(row_or_zero(from, row, end, at, width),
                                 row_or_zero(from, row + 1, end, at, width)));
    }
  }
}

// What stands on the left: to[width][row], filled up with zeros to a multiple of 16 columns of
// `from`, and of 32 rows.
inline void transpose_rows(Bf16Rows from, std::int64_t count, std::int64_t width, std::uint16_t* to,
                           std::int64_t stride) {
  for (std::int64_t row = 0; row < count; row += 2 * kLanes) {
    for (std::int64_t at = 0; at < width; at += kLanes) {
      __m512i block[kLanes];
      for (std::int64_t i = 0; i < kLanes; ++i) {
        block[i] = paired(row_or_zero(from, row + 2 * i, count, at, width),
                          row_or_zero(from, row + 2 * i + 1, count, at, width));
      }
      transpose(block);
      for (std::int64_t i = 0; i < kLanes; ++i)
        _mm512_storeu_si512(to + (at + i) * stride + row, block[i]);
    }
  }
}

}  // namespace

}  // namespace zinf::model
