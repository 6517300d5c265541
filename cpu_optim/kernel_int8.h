// Internal: the loops over 8-bit moments: the update, and whole moments to and from fp32.
#pragma once

#include "cpu_optim/kernel_int8_codes.h"

namespace zinf::optim {

// work(k) for the kInt8Pairs pairs of vectors of a pair of code vectors; k is known to the
// compiler.
template <int k>
struct PairNumber {
  static constexpr int value = k;
};
template <class Work>
[[gnu::always_inline]] inline void for_pairs(Work work) {
  work(PairNumber<0>());
  work(PairNumber<1>());
  work(PairNumber<2>());
  work(PairNumber<3>());
}

// A block between the two passes over it: its new moments in fp32, the random bits of its elements
// (both passes round), and what encodes it.
template <class V>
struct OpenBlock {
  unsigned char *first, *second;
  typename V::F first_encoder;
  typename UnsignedBlock<V>::Encoder second_encoder;
  alignas(64) float firsts[kQuantum], seconds[kQuantum];
  alignas(64) std::uint32_t random[kQuantum];
};

template <class V, bool kFirst, bool kSecond>
void close_block(const OpenBlock<V>& block) {
  for (std::int64_t lane = 0; lane < kInt8Stride; lane += 2 * V::kWidth) {
    Bits<V> first[kInt8Pairs], second[kInt8Pairs];
    for (int k = 0; k < kInt8Pairs; ++k) {
      const std::int64_t i = lane + k * kInt8Stride;
      const Bits<V> bits = {V::iload(block.random + i), V::iload(block.random + i + V::kWidth)};
      if constexpr (kFirst) {
        const Floats<V> x = InOrder<V>::load(block.firsts + i);
        first[k] = {SignedBlock<V>::encode(x.a, block.first_encoder, bits.a),
                    SignedBlock<V>::encode(x.b, block.first_encoder, bits.b)};
      }
      if constexpr (kSecond) {
        const Floats<V> x = InOrder<V>::load(block.seconds + i);
        second[k] = {UnsignedBlock<V>::encode(x.a, block.second_encoder, bits.a),
                     UnsignedBlock<V>::encode(x.b, block.second_encoder, bits.b)};
      }
    }
    if constexpr (kFirst) {
      store_codes<V>(block.first, lane,
                     {SignedBlock<V>::pack(first[0].a, first[1].a, first[2].a, first[3].a),
                      SignedBlock<V>::pack(first[0].b, first[1].b, first[2].b, first[3].b)});
    }
    if constexpr (kSecond) {
      store_codes<V>(block.second, lane,
                     {UnsignedBlock<V>::pack(second[0].a, second[1].a, second[2].a, second[3].a),
                      UnsignedBlock<V>::pack(second[0].b, second[1].b, second[2].b, second[3].b)});
    }
  }
}

// As update_kernel, with 8-bit moments: a block is decoded on the way in, stays in the nearest
// cache as fp32, and is encoded once its range is known: after the next block's first pass, so that
// nothing waits for the range.
template <class V, template <class> class Algorithm, template <class, class> class Weight>
void update_int8_kernel(const UpdateArgs& args) {
  using A = Algorithm<V>;
  using F = typename V::F;
  using L = EvenOdd<V>;
  Weight<V, L> weight;
  const UpdateArgs a = args;
  const A algorithm(a.c);
  const F factor = V::set(a.c.gradient_factor), zero = V::set(0.0f);
  OpenBlock<V> blocks[2];
  auto* first_block = static_cast<unsigned char*>(a.first);
  auto* second_block = static_cast<unsigned char*>(a.second);
  const std::int64_t count = a.elements / kQuantum;
  for (std::int64_t q = 0; q < count; ++q) {
    const std::int64_t begin = q * kQuantum;
    OpenBlock<V>& block = blocks[q % 2];
    block.first = first_block;
    block.second = second_block;
    const RandomBits<V> random(a.keys[q]);
    SignedBlock<V> first_range;
    UnsignedBlock<V> second_range;
    typename SignedBlock<V>::Decoder first_decoder{};
    typename UnsignedBlock<V>::Decoder second_decoder{};
    if constexpr (A::kFirst) first_decoder = SignedBlock<V>::decoder(first_block);
    if constexpr (A::kSecond) second_decoder = UnsignedBlock<V>::decoder(second_block);
    for (std::int64_t lane = 0; lane < kInt8Stride; lane += 2 * V::kWidth) {
      Bits<V> first_codes{}, second_codes{};
      if constexpr (A::kFirst) {
        prefetch_codes<V>(first_block + kPrefetchBlocks, lane);
        first_codes = load_codes<V>(first_block, lane);
      }
      if constexpr (A::kSecond) {
        prefetch_codes<V>(second_block + kPrefetchBlocks, lane);
        second_codes = load_codes<V>(second_block, lane);
      }
      for_pairs([&](auto pair) __attribute__((always_inline)) {
        constexpr int k = decltype(pair)::value;
        const std::int64_t i = lane + k * kInt8Stride;
        prefetch_pair<V>(a.gradient + begin + i + kPrefetchElements);
        weight.prefetch(a, begin + i + kPrefetchElements);
        const Floats<V> g = L::load(a.gradient + begin + i);
        Floats<V> w = weight.load(a, begin + i);
        // One vector after the other, so that what is on the way fits the registers.
        const auto step = [&](F & of_w, F of_g, typename V::I first_code, typename V::I second_code,
                              std::int64_t at) __attribute__((always_inline)) {
          F first = zero, second = zero;
          if constexpr (A::kFirst)
            first = SignedBlock<V>::template decode<k>(first_code, first_decoder);
          if constexpr (A::kSecond)
            second = UnsignedBlock<V>::template decode<k>(second_code, second_decoder);
          algorithm.step(of_w, first, second, V::mul(of_g, factor));
          if constexpr (A::kFirst) {
            first_range.see(first);
            V::store(block.firsts + at, first);
          }
          if constexpr (A::kSecond) {
            second_range.see(second);
            V::store(block.seconds + at, second);
          }
        };
        step(w.a, g.a, first_codes.a, second_codes.a, i);
        step(w.b, g.b, first_codes.b, second_codes.b, i + V::kWidth);
        const Bits<V> bits = random.template at<L>(i);
        V::istore(block.random + i, bits.a);
        V::istore(block.random + i + V::kWidth, bits.b);
        weight.store(a, begin + i, w, bits);
      });
    }
    if constexpr (A::kFirst) block.first_encoder = first_range.encoder(first_block);
    if constexpr (A::kSecond) block.second_encoder = second_range.encoder(second_block);
    if (q > 0) close_block<V, A::kFirst, A::kSecond>(blocks[(q - 1) % 2]);
    if constexpr (A::kFirst) first_block += kInt8BlockBytes;
    if constexpr (A::kSecond) second_block += kInt8BlockBytes;
  }
  if (count > 0) close_block<V, A::kFirst, A::kSecond>(blocks[(count - 1) % 2]);
  weight.finish(a);
}

// Whole moments to and from fp32; no second moment stays above kLargest.
template <class V, template <class> class Block>
void decode_kernel(const void* from, float* to, std::int64_t quanta) {
  const auto* block = static_cast<const unsigned char*>(from);
  for (std::int64_t q = 0; q < quanta; ++q, block += kInt8BlockBytes, to += kQuantum) {
    const auto decoder = Block<V>::decoder(block);
    for (std::int64_t lane = 0; lane < kInt8Stride; lane += 2 * V::kWidth) {
      const Bits<V> codes = load_codes<V>(block, lane);
      for_pairs([&](auto pair) {
        constexpr int k = decltype(pair)::value;
        EvenOdd<V>::store(to + lane + k * kInt8Stride,
                          {Block<V>::template decode<k>(codes.a, decoder),
                           Block<V>::template decode<k>(codes.b, decoder)});
      });
    }
  }
}

template <class V, template <class> class Block>
void encode_kernel(const float* from, void* to, std::int64_t quanta, const std::uint64_t* keys) {
  auto* bytes = static_cast<unsigned char*>(to);
  for (std::int64_t q = 0; q < quanta; ++q, bytes += kInt8BlockBytes, from += kQuantum) {
    Block<V> range;
    const typename V::F most = V::set(kLargest);
    for (int i = 0; i < kQuantum; i += V::kWidth) range.see(V::min(V::load(from + i), most));
    const auto encoder = range.encoder(bytes);
    const RandomBits<V> random(keys[q]);
    for (std::int64_t lane = 0; lane < kInt8Stride; lane += 2 * V::kWidth) {
      Bits<V> codes[kInt8Pairs];
      for (int k = 0; k < kInt8Pairs; ++k) {
        const std::int64_t i = lane + k * kInt8Stride;
        const Bits<V> bits = random.template at<EvenOdd<V>>(i);
        const Floats<V> x = EvenOdd<V>::load(from + i);
        codes[k] = {Block<V>::encode(V::min(x.a, most), encoder, bits.a),
                    Block<V>::encode(V::min(x.b, most), encoder, bits.b)};
      }
      store_codes<V>(bytes, lane,
                     {Block<V>::pack(codes[0].a, codes[1].a, codes[2].a, codes[3].a),
                      Block<V>::pack(codes[0].b, codes[1].b, codes[2].b, codes[3].b)});
    }
  }
}

template <class V>
void fill_int8(KernelTable& table) {
  table.decode_signed = decode_kernel<V, SignedBlock>;
  table.decode_unsigned = decode_kernel<V, UnsignedBlock>;
  table.encode_signed = encode_kernel<V, SignedBlock>;
  table.encode_unsigned = encode_kernel<V, UnsignedBlock>;
}

}  // namespace zinf::optim
