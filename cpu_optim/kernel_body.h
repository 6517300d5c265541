// Internal: the loops, for any vector type. Included by one source per instruction set, which alone
// is compiled with that set's flags: every function here is a template on that set's vector type,
// so the linker can't take one set's code for another's. For the same reason nothing here calls
// inline functions of the standard library.
#pragma once

#include "cpu_optim/kernel_algorithms.h"
#include "cpu_optim/kernel_convert.h"
#include "cpu_optim/kernel_formats.h"
#include "cpu_optim/kernel_int8.h"
#include "cpu_optim/kernel_table.h"

namespace zinf::optim {

template <class V, template <class> class Algorithm, template <class, class> class Weight,
          template <class> class Moment>
void update_kernel(const UpdateArgs& args) {
  using A = Algorithm<V>;
  using M = Moment<V>;
  using L = typename M::L;
  Weight<V, L> weight;
  const UpdateArgs a =
      args;  // a copy, so that stores to states can't change it in the compiler's eyes
  const A algorithm(a.c);
  const typename V::F factor = V::set(a.c.gradient_factor), zero = V::set(0.0f);
  for (std::int64_t begin = 0; begin < a.elements; begin += kQuantum) {
    const RandomBits<V> random(a.keys[begin / kQuantum]);
    for (std::int64_t lane = 0; lane < kQuantum; lane += 2 * V::kWidth) {
      const std::int64_t i = begin + lane;
      const std::int64_t later = i + kPrefetchElements;
      prefetch_pair<V>(a.gradient + later);
      weight.prefetch(a, later);
      if constexpr (A::kFirst) M::prefetch(a.first, later);
      if constexpr (A::kSecond) M::prefetch(a.second, later);
      const Bits<V> bits = random.template at<L>(lane);  // not computed where nobody asks
      const Floats<V> g = L::load(a.gradient + i);
      Floats<V> w = weight.load(a, i);
      Floats<V> first{zero, zero}, second{zero, zero};
      if constexpr (A::kFirst) first = M::load(a.first, i);
      if constexpr (A::kSecond) second = M::load(a.second, i);
      algorithm.step(w.a, first.a, second.a, V::mul(g.a, factor));
      algorithm.step(w.b, first.b, second.b, V::mul(g.b, factor));
      weight.store(a, i, w, bits);
      M::template store<A::kFirst, A::kSecond>(a, i, first, second, bits);
    }
  }
  weight.finish(a);
}

template <class V>
std::uint32_t touch_kernel(const TouchArgs& args) {
  TouchArgs a = args;
  typename V::I seen = V::iset(0);
  for (std::int64_t q = 0; q < a.quanta; ++q, a.gradient += kQuantum) {
    for (int i = 0; i < kQuantum; i += V::kWidth)
      seen = V::ior(seen, V::bits(V::load(a.gradient + i)));
    for (int s = 0; s < a.count; ++s) {
      constexpr std::int64_t kStep = V::kWidth * 4;
      unsigned char* p = a.state[s];
      unsigned char* const end = p + a.quantum_bytes[s];
      a.state[s] = end;
      if (a.is_loaded[s]) {
        // The offset is opaque to the compiler, which else would see that what is stored is what
        // was loaded.
        typename V::I nothing = V::iset(0);
        asm volatile("" : "+m"(nothing));
        for (; p + kStep <= end; p += kStep) {
          auto* words = reinterpret_cast<std::uint32_t*>(p);
          V::istore(words, V::ior(V::iload(words), nothing));
        }
      } else {
        for (; p + kStep <= end; p += kStep) V::istore(reinterpret_cast<std::uint32_t*>(p), seen);
      }
      for (; p < end; p += 4)
        *reinterpret_cast<volatile std::uint32_t*>(p) =
            *reinterpret_cast<volatile std::uint32_t*>(p);
    }
  }
  std::uint32_t lanes[V::kWidth];
  V::istore(lanes, seen);
  return lanes[0];
}

template <class V, template <class> class Algorithm, template <class, class> class Weight>
void fill_moments(KernelTable& table, Family family, WeightIo weight) {
  table.update[family][weight][kMomentFp32] = update_kernel<V, Algorithm, Weight, MomentFp32>;
  table.update[family][weight][kMomentBf16] = update_kernel<V, Algorithm, Weight, MomentBf16>;
  table.update[family][weight][kMomentInt8] = update_int8_kernel<V, Algorithm, Weight>;
}

template <class V, template <class> class Algorithm>
void fill_weights(KernelTable& table, Family family) {
  fill_moments<V, Algorithm, WeightFp32>(table, family, kWeightFp32);
  fill_moments<V, Algorithm, WeightBf16Master>(table, family, kWeightBf16Master);
  fill_moments<V, Algorithm, WeightSplit>(table, family, kWeightSplit);
  fill_moments<V, Algorithm, WeightBf16Sr>(table, family, kWeightBf16Sr);
  fill_moments<V, Algorithm, WeightFp16Master>(table, family, kWeightFp16Master);
}

template <class V>
KernelTable make_table(double (*sum_squares)(const float*, std::int64_t)) {
  KernelTable table{};
  fill_weights<V, Adam>(table, kFamilyAdam);
  fill_weights<V, Lion>(table, kFamilyLion);
  fill_weights<V, Adagrad>(table, kFamilyAdagrad);
  fill_weights<V, Sgd>(table, kFamilySgd);
  fill_weights<V, SgdMomentum>(table, kFamilySgdMomentum);
  fill_int8<V>(table);
  table.touch = touch_kernel<V>;
  table.sum_squares = sum_squares;
  table.fp32_to_bf16 = fp32_to_bf16_kernel<V>;
  table.master_to_bf16 = master_to_bf16_kernel<V>;
  table.bf16_to_fp32 = bf16_to_fp32_kernel<V>;
  table.fp32_to_fp16 = fp32_to_fp16_kernel<V>;
  table.fp16_to_fp32 = fp16_to_fp32_kernel<V>;
  table.split = split_kernel<V>;
  table.join = join_kernel<V>;
  table.add = add_kernel<V>;
  return table;
}

}  // namespace zinf::optim
