// Internal: the whole of xxh3 for the instruction set of the source that includes this. All of it
// is static, so the linker can't take one set's code for another's.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

#include "engine/base/hash.h"
#include "engine/base/hash_kernels.h"

namespace zinf {

namespace {

// The library's streaming state is made for parts of any size: it copies, and keeps its lanes in
// memory. Whole blocks need neither. What follows is xxh3's loop over long input, which adds to
// each lane the product of the halves of a keyed word, and the plain word to its neighbour: the
// latter in sums of their own, which change places once a block instead of once a stripe.
constexpr int kStripe = XXH_STRIPE_LEN;
constexpr int kSecretBytes = XXH_SECRET_DEFAULT_SIZE;
constexpr int kKeyStep = XXH_SECRET_CONSUME_RATE;
constexpr int kStripes = (kSecretBytes - kStripe) / kKeyStep;
static_assert(kStripes * kStripe == BlockHasher::kBlock && kStripe == 8 * kHashLanes);

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kVectors = kStripe / kVectorBytes;
typedef unsigned long long Words __attribute__((vector_size(kVectorBytes)));

// The products of the words' lower halves.
[[gnu::always_inline]] inline Words multiply_halves(Words x, Words y) {
#if defined(__AVX512F__)
  return Words(_mm512_mul_epu32(__m512i(x), __m512i(y)));
#elif defined(__AVX2__)
  return Words(_mm256_mul_epu32(__m256i(x), __m256i(y)));
#elif defined(__SSE2__)
  return Words(_mm_mul_epu32(__m128i(x), __m128i(y)));
#else
  return (x & 0xFFFFFFFFull) * (y & 0xFFFFFFFFull);
#endif
}

[[gnu::always_inline]] inline Words neighbours(Words x) {
  Words swapped{};
  for (int i = 0; i < kVectorBytes / 8; ++i) swapped[i] = x[i ^ 1];
  return swapped;
}

struct Lanes {
  Words mixed[kVectors] = {}, plain[kVectors] = {};

  [[gnu::always_inline]] explicit Lanes(const std::uint64_t* lanes) {
    std::memcpy(mixed, lanes, sizeof mixed);
  }
  [[gnu::always_inline]] void add_stripe(const unsigned char* data, const unsigned char* key) {
    for (int v = 0; v < kVectors; ++v) {
      Words words, keyed;
      std::memcpy(&words, data + v * kVectorBytes, sizeof words);
      std::memcpy(&keyed, key + v * kVectorBytes, sizeof keyed);
      keyed ^= words;
      mixed[v] += multiply_halves(keyed, keyed >> 32);
      plain[v] += words;
#if defined(__x86_64__)
      // Otherwise the compiler keeps a block's products and sums them at the end, which takes twice
      // the registers that there are.
      asm("" : "+v"(mixed[v]), "+v"(plain[v]));
#endif
    }
  }
  [[gnu::always_inline]] void add_plain() {
    for (int v = 0; v < kVectors; ++v) {
      mixed[v] += neighbours(plain[v]);
      plain[v] = Words{};
    }
  }
  [[gnu::always_inline]] void scramble() {
    for (int v = 0; v < kVectors; ++v) {
      Words key, prime = Words{} + XXH_PRIME32_1;
      std::memcpy(&key, XXH3_kSecret + kSecretBytes - kStripe + v * kVectorBytes, sizeof key);
      const Words x = mixed[v] ^ (mixed[v] >> 47) ^ key;
      mixed[v] = multiply_halves(x, prime) + (multiply_halves(x >> 32, prime) << 32);
    }
  }
};

std::uint64_t one_shot(const void* data, std::size_t bytes) { return XXH3_64bits(data, bytes); }

void reset(std::uint64_t* lanes) {
  constexpr XXH64_hash_t kStart[kHashLanes] = XXH3_INIT_ACC;
  std::memcpy(lanes, kStart, sizeof kStart);
}

void update(std::uint64_t* lanes, const void* data, std::size_t blocks) {
  Lanes sums(lanes);
  const auto* block = static_cast<const unsigned char*>(data);
  for (; blocks > 0; --blocks, block += BlockHasher::kBlock) {
#pragma GCC unroll 16
    for (int i = 0; i < kStripes; ++i)
      sums.add_stripe(block + i * kStripe, XXH3_kSecret + i * kKeyStep);
    sums.add_plain();
    sums.scramble();
  }
  std::memcpy(lanes, sums.mixed, sizeof sums.mixed);
}

// A page's last stripe has a key of its own and is not scrambled.
std::uint64_t finish(const std::uint64_t* lanes, const void* last_block, std::uint64_t bytes) {
  Lanes sums(lanes);
  const auto* block = static_cast<const unsigned char*>(last_block);
  for (int i = 0; i < kStripes - 1; ++i)
    sums.add_stripe(block + i * kStripe, XXH3_kSecret + i * kKeyStep);
  sums.add_stripe(block + BlockHasher::kBlock - kStripe,
                  XXH3_kSecret + kSecretBytes - kStripe - XXH_SECRET_LASTACC_START);
  sums.add_plain();
  alignas(64) XXH64_hash_t merged[kHashLanes];
  std::memcpy(merged, sums.mixed, sizeof merged);
  return XXH3_mergeAccs(merged, XXH3_kSecret + XXH_SECRET_MERGEACCS_START, bytes * XXH_PRIME64_1);
}

constexpr HashKernels kKernels = {one_shot, reset, update, finish};

}  // namespace

}  // namespace zinf
