// Internal: the random bits of stochastic rounding, from a counter: they depend on (seed, step,
// element) alone.
#pragma once

#include <cstdint>

#include "cpu_optim/kernel_layout.h"

namespace zinf::optim {

// 32 random bits per element. A quantum has a 64-bit key; its elements count from one half of it in
// steps of the other half (made odd), and each count is mixed once: folded, multiplied, folded.
template <class V>
class RandomBits {
 public:
  using I = typename V::I;
  explicit RandomBits(std::uint64_t key)
      : start_(static_cast<std::uint32_t>(key)), step_(static_cast<std::uint32_t>(key >> 32) | 1) {}

  // Of the pair of vectors that starts at this element of the quantum.
  template <class L>
  Bits<V> at(std::int64_t element) const {
    const I steps = V::imul(V::lanes(), V::iset(L::kStride * step_));  // a constant of the quantum
    const I count = V::iadd(steps, V::iset(start_ + static_cast<std::uint32_t>(element) * step_));
    return {mix(count), mix(V::iadd(count, V::iset(L::kSecond * step_)))};
  }
  // 16 bits for the weight, where the moments use those at both ends of `random`: the middle ones.
  // What matters in them, the upper ones, is what matters least in the second moment's.
  static Bits<V> for_weight(const Bits<V>& random) {
    const I low = V::iset(0xFFFFu);
    return {V::iand(V::template shr<8>(random.a), low), V::iand(V::template shr<8>(random.b), low)};
  }

 private:
  static I mix(I x) {
    x = V::imul(V::ixor(x, V::template shr<15>(x)), V::iset(0x846CA68Bu));
    return V::ixor(x, V::template shr<16>(x));
  }
  std::uint32_t start_, step_;
};

}  // namespace zinf::optim
