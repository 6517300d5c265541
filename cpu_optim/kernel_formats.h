// Internal: how a pair of vectors of weights or moments is read from and written to its states. V
// is a vector type (vec_*.h), L a layout (kernel_layout.h). Loads and stores take the element index
// within the call.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu_optim/kernel_layout.h"
#include "cpu_optim/kernel_random.h"
#include "cpu_optim/kernel_table.h"

namespace zinf::optim {

// Whether a NaN has been seen among masters. Loops go on as if there were none, without a branch
// and without a call that costs them their registers; what they have stored is mended at the end.
template <class V>
struct NanWatch {
  typename V::Ordered ordered = V::all_ordered();
  void see(const Floats<V>& x) { ordered = V::still_ordered(ordered, x.a, x.b); }
  bool found() const { return !V::is_all(ordered); }
};

// The bits of a master whose rounded weight (nearest, ties away from zero) is in the high half.
template <class V>
Bits<V> weight_bits(const Floats<V>& master) {
  const typename V::I half = V::iset(0x8000u);
  return {V::iadd(V::bits(master.a), half), V::iadd(V::bits(master.b), half)};
}

// NaNs (keep_split_nan) in what was stored. The functions of one vector type only, as all here.
template <class V>
void keep_nans(const float* masters, std::uint16_t* weights, std::int64_t elements) {
  for (std::int64_t i = 0; i < elements; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, masters + i, sizeof bits);
    weights[i] = static_cast<std::uint16_t>((keep_split_nan(bits) + 0x8000u) >> 16);
  }
}
template <class V>
void keep_nans(std::uint16_t* weights, std::int16_t* remainders, std::int64_t elements) {
  for (std::int64_t i = 0; i < elements; ++i) {
    const auto rest = static_cast<std::uint32_t>(static_cast<std::int32_t>(remainders[i]));
    const std::uint32_t bits =
        keep_split_nan((static_cast<std::uint32_t>(weights[i]) << 16) + rest);
    weights[i] = static_cast<std::uint16_t>((bits + 0x8000u) >> 16);
    remainders[i] = static_cast<std::int16_t>(bits);
  }
}

// x rounded up with probability (low 16 bits of random) / 2^16 to a bf16, which are the high 16
// bits of the result: unbiased. Infinity stays. So do the NaNs that arise here: arithmetic makes
// 0x7FC00000 or keeps the payload of a bf16, and neither is carried over the top by 16 low bits.
template <class V>
Bits<V> round_stochastic(const Floats<V>& x, const Bits<V>& random) {
  return {V::iadd(V::bits(x.a), random.a), V::iadd(V::bits(x.b), random.b)};
}
template <class V>
Bits<V> low_16(const Bits<V>& x) {
  return {V::iand(x.a, V::iset(0xFFFFu)), V::iand(x.b, V::iset(0xFFFFu))};
}
template <class V>
Bits<V> high_16(const Bits<V>& x) {
  return {V::template shr<16>(x.a), V::template shr<16>(x.b)};
}

// Weights. finish() comes after the call's last store.
template <class V, class L>
struct WeightFp32 {
  static void prefetch(const UpdateArgs& a, std::int64_t i) {
    prefetch_pair<V>(static_cast<const float*>(a.weight) + i);
  }
  static Floats<V> load(const UpdateArgs& a, std::int64_t i) {
    return L::load(static_cast<const float*>(a.weight) + i);
  }
  void store(const UpdateArgs& a, std::int64_t i, const Floats<V>& w, const Bits<V>&) {
    L::store(static_cast<float*>(a.weight) + i, w);
  }
  void finish(const UpdateArgs&) const {}
};

template <class V, class L>
struct WeightBf16Master {
  static void prefetch(const UpdateArgs& a, std::int64_t i) {
    prefetch_pair<V>(static_cast<const float*>(a.master) + i);
    prefetch_pair<V>(static_cast<const std::uint16_t*>(a.weight) + i);
  }
  static Floats<V> load(const UpdateArgs& a, std::int64_t i) {
    return L::load(static_cast<const float*>(a.master) + i);
  }
  void store(const UpdateArgs& a, std::int64_t i, const Floats<V>& w, const Bits<V>&) {
    L::store(static_cast<float*>(a.master) + i, w);
    L::store_high(static_cast<std::uint16_t*>(a.weight) + i, weight_bits(w));
    nans.see(w);
  }
  void finish(const UpdateArgs& a) const {
    if (!nans.found()) return;
    keep_nans<V>(static_cast<const float*>(a.master), static_cast<std::uint16_t*>(a.weight),
                 a.elements);
  }
  NanWatch<V> nans;
};

template <class V, class L>
struct WeightFp16Master {
  static void prefetch(const UpdateArgs& a, std::int64_t i) {
    prefetch_pair<V>(static_cast<const float*>(a.master) + i);
    prefetch_pair<V>(static_cast<const std::uint16_t*>(a.weight) + i);
  }
  static Floats<V> load(const UpdateArgs& a, std::int64_t i) {
    return L::load(static_cast<const float*>(a.master) + i);
  }
  void store(const UpdateArgs& a, std::int64_t i, const Floats<V>& w, const Bits<V>&) {
    L::store(static_cast<float*>(a.master) + i, w);
    L::store_low(static_cast<std::uint16_t*>(a.weight) + i, {V::to_fp16(w.a), V::to_fp16(w.b)});
  }
  void finish(const UpdateArgs&) const {}
};

template <class V, class L>
struct WeightSplit {
  static void prefetch(const UpdateArgs& a, std::int64_t i) {
    prefetch_pair<V>(static_cast<const std::uint16_t*>(a.weight) + i);
    prefetch_pair<V>(static_cast<const std::uint16_t*>(a.master) + i);
  }
  static Floats<V> load(const UpdateArgs& a, std::int64_t i) {
    return from_bits<V>(L::load_split(static_cast<const std::uint16_t*>(a.weight) + i,
                                      static_cast<const std::int16_t*>(a.master) + i));
  }
  void store(const UpdateArgs& a, std::int64_t i, const Floats<V>& w, const Bits<V>&) {
    L::store_split(static_cast<std::uint16_t*>(a.weight) + i,
                   static_cast<std::int16_t*>(a.master) + i, bits(w));
    nans.see(w);
  }
  void finish(const UpdateArgs& a) const {
    if (!nans.found()) return;
    keep_nans<V>(static_cast<std::uint16_t*>(a.weight), static_cast<std::int16_t*>(a.master),
                 a.elements);
  }
  NanWatch<V> nans;
};

template <class V, class L>
struct WeightBf16Sr {
  static void prefetch(const UpdateArgs& a, std::int64_t i) {
    prefetch_pair<V>(static_cast<const std::uint16_t*>(a.weight) + i);
  }
  static Floats<V> load(const UpdateArgs& a, std::int64_t i) {
    return from_bits<V>(L::load_high(static_cast<const std::uint16_t*>(a.weight) + i));
  }
  void store(const UpdateArgs& a, std::int64_t i, const Floats<V>& w, const Bits<V>& random) {
    L::store_high(static_cast<std::uint16_t*>(a.weight) + i,
                  round_stochastic(w, RandomBits<V>::for_weight(random)));
  }
  void finish(const UpdateArgs&) const {}
};

// Moments: kFirst and kSecond say which of the two the algorithm has.
template <class V>
struct MomentFp32 {
  using L = InOrder<V>;
  static void prefetch(const void* state, std::int64_t i) {
    prefetch_pair<V>(static_cast<const float*>(state) + i);
  }
  static Floats<V> load(const void* state, std::int64_t i) {
    return L::load(static_cast<const float*>(state) + i);
  }
  template <bool kFirst, bool kSecond>
  static void store(const UpdateArgs& a, std::int64_t i, const Floats<V>& first,
                    const Floats<V>& second, const Bits<V>&) {
    if constexpr (kFirst) L::store(static_cast<float*>(a.first) + i, first);
    if constexpr (kSecond) L::store(static_cast<float*>(a.second) + i, second);
  }
};

template <class V>
struct MomentBf16 {
  using L = EvenOdd<V>;
  static void prefetch(const void* state, std::int64_t i) {
    prefetch_pair<V>(static_cast<const std::uint16_t*>(state) + i);
  }
  static Floats<V> load(const void* state, std::int64_t i) {
    return from_bits<V>(L::load_high(static_cast<const std::uint16_t*>(state) + i));
  }
  template <bool kFirst, bool kSecond>
  static void store(const UpdateArgs& a, std::int64_t i, const Floats<V>& first,
                    const Floats<V>& second, const Bits<V>& random) {
    if constexpr (kFirst) {
      L::store_high(static_cast<std::uint16_t*>(a.first) + i,
                    round_stochastic(first, low_16(random)));
    }
    if constexpr (kSecond) {
      L::store_high(static_cast<std::uint16_t*>(a.second) + i,
                    round_stochastic(second, high_16(random)));
    }
  }
};

}  // namespace zinf::optim
