// Internal: 8-bit moments. A block is one quantum: 256 codes, then 4 bytes. No table, no root, no
// division per element.
//
// First moment (signed): the fp32 largest |x| of the block. A code is a sign and 7 bits of z = |x|
// / largest * 1.93, moved up by 2^-7 and read as a small float: 3 bits of exponent, 4 of mantissa.
// The error is at most |x| / 16 + largest / 3900.
//
// Second moment (x >= 0): two bf16, the block's range [low, high], low at least high * 2^-24 and
// 2^-133. Code 0 is zero; codes 1 to 255 divide the range evenly in the bits of the fp32 number, a
// curve that is straight between powers of 2 and logarithmic in the large. Steps are at most 1.6 %
// of the value where a block lies within a factor of 16, 10 % in the widest. What is above zero
// never becomes zero (a step divides by its root): it is raised to low.
//
// Both round stochastically: the expected decoded value is x, up to the curve's bend within a step
// of the second kind. The second moment moves by a thousandth per step; rounded to nearest it would
// stay where it is.
//
// Element 64 k + 2 j + p of the block (p = 0 or 1) has its code in byte k of word 32 p + j, words
// of 4 bytes: a vector of words then holds four pairs of vectors, each of neighbouring elements,
// even and odd.
#pragma once

#include <cstring>

#include "cpu_optim/kernel_algorithms.h"
#include "cpu_optim/kernel_formats.h"

namespace zinf::optim {

constexpr std::int64_t kInt8BlockBytes = kQuantum + 4;
constexpr std::int64_t kInt8Pairs = 4;                       // of vectors in a pair of code vectors
constexpr std::int64_t kInt8Stride = kQuantum / kInt8Pairs;  // elements between them

constexpr float kSignedOffset = 0.0078125f;  // 2^-7
constexpr std::uint32_t kSignedOffsetBits = 0x3C000000u;
// Code 127 less the offset, and a little less again, so that no rounding passes code 127.
constexpr float kSignedSpan = 1.9296875f * (1.0f - 0x1p-20f);
constexpr float kSignedSmallest =
    1.0e-35f;  // a block below is zero: its scale would have no inverse
constexpr float kUnsignedRange = 5.9604645e-08f;  // 2^-24
constexpr std::uint32_t kUnsignedSmallest = 0x00010000u;

// The codes of kInt8Pairs pairs of vectors: those of elements i, i + 1, ..., i + 2 * width - 1,
// and of the same after every kInt8Stride elements.
template <class V>
Bits<V> load_codes(const unsigned char* block, std::int64_t i) {
  return {V::load_packed(block + 2 * i), V::load_packed(block + kQuantum / 2 + 2 * i)};
}
constexpr std::int64_t kPrefetchBlocks = kPrefetchElements / kQuantum * kInt8BlockBytes;  // bytes
// The same codes' cache lines.
template <class V>
void prefetch_codes(const unsigned char* block, std::int64_t i) {
  prefetch_lines<4 * V::kWidth>(block + 2 * i);
  prefetch_lines<4 * V::kWidth>(block + kQuantum / 2 + 2 * i);
}
template <class V>
void store_codes(unsigned char* block, std::int64_t i, const Bits<V>& codes) {
  V::store_packed(block + 2 * i, codes.a);
  V::store_packed(block + kQuantum / 2 + 2 * i, codes.b);
}

// x shifted to the left by kBits, which may be negative.
template <class V, int kBits>
typename V::I shifted(typename V::I x) {
  if constexpr (kBits > 0) {
    return V::template shl<kBits>(x);
  } else if constexpr (kBits < 0) {
    return V::template shr<-kBits>(x);
  } else {
    return x;
  }
}

// First moments of one block.
template <class V>
struct SignedBlock {
  using F = typename V::F;
  using I = typename V::I;

  struct Decoder {
    F scale, offset;
  };
  static Decoder decoder(const unsigned char* block) {
    float largest;
    std::memcpy(&largest, block + kQuantum, sizeof largest);
    const float scale = largest / kSignedSpan;
    const F bounded = V::set(scale < kLargest ? scale : kLargest);
    return {bounded, V::mul(bounded, V::set(kSignedOffset))};
  }
  // The codes in byte k of each lane.
  template <int k>
  static F decode(I codes, const Decoder& d) {
    const I size =
        V::select(0x03F80000u, shifted<V, 19 - 8 * k>(codes), V::iset(kSignedOffsetBits));
    const F x = V::fms(V::from_bits(size), d.scale, d.offset);
    return V::with_sign(x, V::from_bits(shifted<V, 24 - 8 * k>(codes)));
  }

  // The running largest |x|, lane by lane.
  F most = V::set(0.0f);
  void see(F x) { most = V::max_abs(most, x); }

  // Writes the block's scale, returns the encoding one.
  F encoder(unsigned char* block) const {
    float largest = V::max_lane(most);
    if (largest < kSignedSmallest) largest = 0.0f;
    std::memcpy(block + kQuantum, &largest, sizeof largest);
    return V::set(largest == 0.0f ? 0.0f : kSignedSpan / largest);
  }
  // Takes the low 19 random bits. The code is the sign and bits 25 to 19.
  static I encode(F x, F scale, I random) {
    const F z = V::fma(x, scale, V::with_sign(V::set(kSignedOffset), x));
    return V::iadd(V::bits(z), V::iand(random, V::iset(0x7FFFFu)));
  }
  // Codes to bytes 0 to 3.
  static I pack(I c0, I c1, I c2, I c3) {
    const I low = place(c0, c2), high = place(c1, c3);
    return V::ior(V::iand(high, V::iset(0xFF00FF00u)), V::template shr_words<8>(low));
  }

 private:
  // In the upper bytes of the words. What the shift brings to the sign's place is always set: z is
  // at least 2^-7 and below 2.
  static I place(I x, I y) {
    const I words = V::select(0xFFFF0000u, y, V::template shr<16>(x));
    return V::iand(V::template shl_words<5>(words), V::ior(words, V::iset(0x7FFF7FFFu)));
  }
};

// Second moments of one block, none above kLargest.
template <class V>
struct UnsignedBlock {
  using F = typename V::F;
  using I = typename V::I;

  // value bits = low + (code - 1) * step, by way of z = 1 + code / 256.
  struct Decoder {
    F steps;   // 256 steps
    F offset;  // 257 steps
    I low;
  };
  static Decoder decoder(const unsigned char* block) {
    std::uint16_t range[2];
    std::memcpy(range, block + kQuantum, sizeof range);
    const std::uint32_t low = static_cast<std::uint32_t>(range[0]) << 16;
    const std::uint32_t high = static_cast<std::uint32_t>(range[1]) << 16;
    const float step = static_cast<float>(static_cast<std::int32_t>(high - low)) / 254.0f;
    return {V::set(256.0f * step), V::set(257.0f * step), V::iset(low)};
  }
  template <int k>
  static F decode(I codes, const Decoder& d) {
    const I code = shifted<V, 15 - 8 * k>(codes);
    const I z = V::select(0x007F8000u, code, V::iset(0x3F800000u));
    const I above = V::truncate(V::fms(V::from_bits(z), d.steps, d.offset));
    return V::from_bits(V::template add_where_bits<0x007F8000u>(above, d.low, code));
  }

  // Bits less 1, as numbers without a sign: zero is the largest of them.
  F most = V::set(0.0f);
  I least = V::isub(V::bits(V::set(kLargest)), V::iset(1));
  void see(F x) {
    most = V::max(x, most);
    least = V::min_unsigned(least, V::isub(V::bits(x), V::iset(1)));
  }

  struct Encoder {
    F inverse, low;
  };
  // Writes the block's range.
  Encoder encoder(unsigned char* block) const {
    const float largest = V::max_lane(most);
    float smallest = V::min_lane(V::from_bits(V::iadd(least, V::iset(1))));
    const float bound = largest * kUnsignedRange;
    if (smallest < bound) smallest = bound;
    std::uint32_t low = 0, high = 0;
    if (largest > 0.0f) {
      std::memcpy(&low, &smallest, sizeof low);
      std::memcpy(&high, &largest, sizeof high);
      low &= 0xFFFF0000u;
      if (low < kUnsignedSmallest) low = kUnsignedSmallest;
      high = (high + 0xFFFFu) & 0xFFFF0000u;  // at most kLargest, as all x are
    }
    const std::uint16_t range[2] = {static_cast<std::uint16_t>(low >> 16),
                                    static_cast<std::uint16_t>(high >> 16)};
    std::memcpy(block + kQuantum, range, sizeof range);
    const auto width = static_cast<float>(static_cast<std::int32_t>(high - low));
    float bottom;
    std::memcpy(&bottom, &low, sizeof bottom);
    // A little less than 254 steps, so that no rounding passes code 255.
    return {V::set(width == 0.0f ? 0.0f : 254.0f * (1.0f - 0x1p-20f) / width), V::set(bottom)};
  }
  // Takes the high 13 random bits. The code is bits 20 to 13.
  static I encode(F x, const Encoder& e, I random) {
    const F raised = V::max(x, e.low);
    const F above = V::to_float(V::isub(V::bits(raised), V::bits(e.low)));
    // The ulp of 1024 is 2^-13; codes start at 1.
    const F code = V::fma(above, e.inverse, V::set(1025.0f));
    return V::add_where_nonzero(V::bits(code), V::template shr<19>(random), x);
  }
  static I pack(I c0, I c1, I c2, I c3) {
    const I low = V::select(0xFF00u, V::template shr<5>(c1), V::template shr<13>(c0));
    const I high = V::select(0xFF000000u, V::template shl<11>(c3), V::template shl<3>(c2));
    return V::select(0xFFFF0000u, high, low);
  }
};

}  // namespace zinf::optim
