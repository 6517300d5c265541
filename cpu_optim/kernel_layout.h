// Internal: the kernels take 2 x width elements at a time, as a pair of vectors. A layout says
// which elements lie in which: one vector after the other, or the even and the odd elements. 16-bit
// states unpack into even and odd elements with a shift and a mask and pack as cheaply, which is
// worth sorting the fp32 gradient; fp32 states are read and written in order.
#pragma once

#include <cstdint>

namespace zinf::optim {

template <class V>
struct Floats {
  typename V::F a, b;
};
template <class V>
struct Bits {
  typename V::I a, b;
};

template <class V>
Bits<V> bits(const Floats<V>& x) {
  return {V::bits(x.a), V::bits(x.b)};
}
template <class V>
Floats<V> from_bits(const Bits<V>& x) {
  return {V::from_bits(x.a), V::from_bits(x.b)};
}

// What a kernel will load this many elements later is asked for now. Measured with bf16 moments: an
// update takes about as long as its memory traffic alone; without, nearer to the sum of traffic and
// arithmetic. Addresses behind a state's end are harmless.
constexpr std::int64_t kPrefetchElements = 512;
constexpr std::int64_t kPrefetchOnlyStream = 2048;  // where nothing but one fp32 range is read

// Of these bytes at p, every cache line. Where they are less than half a line, none: such a set
// waits for its arithmetic, not for memory.
template <int kBytes>
[[gnu::always_inline]] inline void prefetch_lines(const void* p) {
  constexpr int kLine = 64;
  if constexpr (kBytes >= kLine / 2) {
    for (int at = 0; at < kBytes; at += kLine) __builtin_prefetch(static_cast<const char*>(p) + at);
  }
}
template <class V, class T>
[[gnu::always_inline]] inline void prefetch_pair(const T* p) {
  prefetch_lines<2 * V::kWidth* static_cast<int>(sizeof(T))>(p);
}

template <class V>
struct InOrder {
  // Element of the pair at lane l of a: kStride * l; of b: the same, + kSecond.
  static constexpr std::uint32_t kStride = 1, kSecond = V::kWidth;

  static Floats<V> load(const float* p) { return {V::load(p), V::load(p + V::kWidth)}; }
  static void store(float* p, const Floats<V>& x) {
    V::store(p, x.a);
    V::store(p + V::kWidth, x.b);
  }
  // 16-bit numbers in the high halves, zeros below.
  static Bits<V> load_high(const std::uint16_t* p) {
    return {V::template shl<16>(V::load_u16(p)), V::template shl<16>(V::load_u16(p + V::kWidth))};
  }
  static void store_high(std::uint16_t* p, const Bits<V>& x) {
    V::store_high_16(p, x.a);
    V::store_high_16(p + V::kWidth, x.b);
  }
  // Lanes below 2^16.
  static void store_low(std::uint16_t* p, const Bits<V>& x) {
    V::store_low_16(p, x.a);
    V::store_low_16(p + V::kWidth, x.b);
  }
  // A split master: see kernel_formats.h.
  static Bits<V> load_split(const std::uint16_t* weight, const std::int16_t* remainder) {
    const Bits<V> high = load_high(weight);
    return {V::iadd(high.a, V::load_s16(remainder)),
            V::iadd(high.b, V::load_s16(remainder + V::kWidth))};
  }
  static void store_split(std::uint16_t* weight, std::int16_t* remainder, const Bits<V>& x) {
    const typename V::I half = V::iset(0x8000u);
    store_high(weight, {V::iadd(x.a, half), V::iadd(x.b, half)});
    V::store_low_16(remainder, x.a);
    V::store_low_16(remainder + V::kWidth, x.b);
  }
};

template <class V>
struct EvenOdd {
  static constexpr std::uint32_t kStride = 2, kSecond = 1;
  static constexpr std::uint32_t kHigh = 0xFFFF0000u;

  static Floats<V> load(const float* p) {
    Floats<V> x;
    V::load_even_odd(p, x.a, x.b);
    return x;
  }
  static void store(float* p, const Floats<V>& x) {
    V::store(p, V::zip_low(x.a, x.b));
    V::store(p + V::kWidth, V::zip_high(x.a, x.b));
  }
  static Bits<V> load_high(const std::uint16_t* p) {
    const typename V::I words = V::load_packed(p);
    return {V::template shl<16>(words), V::iand(words, V::iset(kHigh))};
  }
  static void store_high(std::uint16_t* p, const Bits<V>& x) { V::store_packed(p, high(x)); }
  static void store_low(std::uint16_t* p, const Bits<V>& x) {
    V::store_packed(p, V::ior(V::template shl<16>(x.b), x.a));
  }
  // The remainder is a signed number: where it is negative, the master's high half is one less than
  // the weight.
  static Bits<V> load_split(const std::uint16_t* weight, const std::int16_t* remainder) {
    const typename V::I low = V::load_packed(remainder);
    const typename V::I high = V::add_words(V::load_packed(weight), V::sign_words(low));
    return {V::select(kHigh, V::template shl<16>(high), low),
            V::select(kHigh, high, V::template shr<16>(low))};
  }
  static void store_split(std::uint16_t* weight, std::int16_t* remainder, const Bits<V>& x) {
    const typename V::I low = V::select(kHigh, V::template shl<16>(x.b), x.a);
    V::store_packed(weight, V::add_words(high(x), V::template shr_words<15>(low)));
    V::store_packed(remainder, low);
  }

 private:
  static typename V::I high(const Bits<V>& x) {
    return V::select(kHigh, x.b, V::template shr<16>(x.a));
  }
};

}  // namespace zinf::optim
