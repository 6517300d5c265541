// Internal: the conversions of convert.h.
#pragma once

#include <cstring>

#include "cpu_optim/kernel_formats.h"

namespace zinf::optim {

// to[i] = op(from[i]) for kStep elements at a time; the tail goes through a padded copy.
template <class V, int kStep = V::kWidth, class From, class To, class Op>
void map(const From* from, To* to, std::int64_t elements, Op op) {
  std::int64_t i = 0;
  for (; i + kStep <= elements; i += kStep) op(from + i, to + i);
  if (i == elements) return;
  From in[kStep] = {};
  To out[kStep] = {};
  std::memcpy(in, from + i, static_cast<std::size_t>(elements - i) * sizeof(From));
  op(in, out);
  std::memcpy(to + i, out, static_cast<std::size_t>(elements - i) * sizeof(To));
}

template <class V>
void fp32_to_bf16_kernel(const float* from, std::uint16_t* to, std::int64_t elements) {
  map<V>(from, to, elements, [](const float* in, std::uint16_t* out) {
    const typename V::F x = V::load(in);
    const typename V::I bits = V::bits(x);
    const typename V::I odd = V::iand(V::template shr<16>(bits), V::iset(1));
    typename V::I sum = V::iadd(bits, V::iadd(odd, V::iset(0x7FFFu)));
    if (V::any_nan(x)) [[unlikely]] {
      std::uint32_t lanes[V::kWidth], sums[V::kWidth];
      V::istore(lanes, bits);
      V::istore(sums, sum);
      for (int i = 0; i < V::kWidth; ++i) {
        if ((lanes[i] & 0x7FFFFFFFu) > 0x7F800000u) sums[i] = lanes[i] | 0x00400000u;
      }
      sum = V::iload(sums);
    }
    V::store_high_16(out, sum);
  });
}

template <class V>
void master_to_bf16_kernel(const float* from, std::uint16_t* to, std::int64_t elements) {
  NanWatch<V> nans;
  map<V, 2 * V::kWidth>(from, to, elements, [&](const float* in, std::uint16_t* out) {
    const Floats<V> x = InOrder<V>::load(in);
    InOrder<V>::store_high(out, weight_bits(x));
    nans.see(x);
  });
  if (nans.found()) keep_nans<V>(from, to, elements);
}

template <class V>
void bf16_to_fp32_kernel(const std::uint16_t* from, float* to, std::int64_t elements) {
  map<V>(from, to, elements, [](const std::uint16_t* in, float* out) {
    V::store(out, V::from_bits(V::template shl<16>(V::load_u16(in))));
  });
}

template <class V>
void fp32_to_fp16_kernel(const float* from, std::uint16_t* to, std::int64_t elements) {
  map<V>(from, to, elements, [](const float* in, std::uint16_t* out) {
    V::store_low_16(out, V::to_fp16(V::load(in)));
  });
}

template <class V>
void fp16_to_fp32_kernel(const std::uint16_t* from, float* to, std::int64_t elements) {
  map<V>(from, to, elements,
         [](const std::uint16_t* in, float* out) { V::store(out, V::from_fp16(V::load_u16(in))); });
}

template <class V>
void split_kernel(const float* from, std::uint16_t* weight, std::int16_t* remainder,
                  std::int64_t elements) {
  NanWatch<V> nans;
  std::int64_t i = 0;
  for (; i + 2 * V::kWidth <= elements; i += 2 * V::kWidth) {
    const Floats<V> x = InOrder<V>::load(from + i);
    InOrder<V>::store_split(weight + i, remainder + i, bits(x));
    nans.see(x);
  }
  if (nans.found()) keep_nans<V>(weight, remainder, i);
  for (; i < elements; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, from + i, sizeof bits);
    bits = keep_split_nan(bits);
    weight[i] = static_cast<std::uint16_t>((bits + 0x8000u) >> 16);
    remainder[i] = static_cast<std::int16_t>(bits);
  }
}

template <class V>
void join_kernel(const std::uint16_t* weight, const std::int16_t* remainder, float* to,
                 std::int64_t elements) {
  std::int64_t i = 0;
  for (; i + 2 * V::kWidth <= elements; i += 2 * V::kWidth) {
    InOrder<V>::store(to + i, from_bits<V>(InOrder<V>::load_split(weight + i, remainder + i)));
  }
  for (; i < elements; ++i) {
    const std::uint32_t bits = (static_cast<std::uint32_t>(weight[i]) << 16) +
                               static_cast<std::uint32_t>(static_cast<std::int32_t>(remainder[i]));
    std::memcpy(to + i, &bits, sizeof bits);
  }
}

template <class V>
void add_kernel(float* sum, const float* row, std::int64_t elements) {
  std::int64_t i = 0;
  for (; i + V::kWidth <= elements; i += V::kWidth) {
    V::store(sum + i, V::add(V::load(sum + i), V::load(row + i)));
  }
  for (; i < elements; ++i) sum[i] += row[i];
}

}  // namespace zinf::optim
