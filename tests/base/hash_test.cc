#include "engine/base/hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/hash_kernels.h"

namespace zinf {
namespace {

std::string hash_of(const std::string& text) {
  Hasher hasher;
  hasher.update(text.data(), text.size());
  return hasher.hex();
}

// XXH3's published value for no input; the rest is pinned: files carry these.
// All sets give the library's own value.
TEST(Hash, InstructionSetsAgree) {
  std::vector<unsigned char> bytes(70001);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<unsigned char>(i * 167 + i / 256);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{240}, std::size_t{241},
                                 std::size_t{1024}, std::size_t{65536}, bytes.size()}) {
    const std::uint64_t expected = plain_hash_kernels().one_shot(bytes.data(), size);
    EXPECT_EQ(xxh3_64(bytes.data(), size), expected) << size;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
      EXPECT_EQ(avx2_hash_kernels().one_shot(bytes.data(), size), expected) << size;
    }
    if (__builtin_cpu_supports("avx512f")) {
      EXPECT_EQ(avx512_hash_kernels().one_shot(bytes.data(), size), expected) << size;
    }
#endif
  }
}

// The library's one-shot function is the naive twin.
TEST(Hash, BlocksInPartsGiveTheWholesValue) {
  std::vector<const HashKernels*> sets = {&plain_hash_kernels()};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) sets.push_back(&avx2_hash_kernels());
  if (__builtin_cpu_supports("avx512f")) sets.push_back(&avx512_hash_kernels());
#endif
  constexpr std::size_t kBlock = BlockHasher::kBlock;
  std::vector<unsigned char> bytes(65 * kBlock + 1);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<unsigned char>(i * 167 + i / 256);
  for (const std::size_t blocks : {1, 2, 3, 16, 65}) {
    for (const std::size_t shift : {0, 1}) {  // any alignment
      const unsigned char* data = bytes.data() + shift;
      const std::uint64_t expected = plain_hash_kernels().one_shot(data, blocks * kBlock);
      for (std::size_t part = 1; part < blocks + 1; ++part) {
        BlockHasher hasher;
        for (int again = 0; again < 2; ++again, hasher.reset()) {
          for (std::size_t at = 0; at + 1 < blocks; at += part)
            hasher.update(data + at * kBlock, std::min(part, blocks - 1 - at));
          EXPECT_EQ(hasher.finish(data + (blocks - 1) * kBlock, blocks * kBlock), expected)
              << blocks << " in parts of " << part << ", time " << again;
        }
      }
      for (const HashKernels* set : sets) {
        std::uint64_t lanes[kHashLanes];
        set->reset(lanes);
        set->update(lanes, data, blocks - 1);
        EXPECT_EQ(set->finish(lanes, data + (blocks - 1) * kBlock, blocks * kBlock), expected)
            << blocks;
      }
    }
  }
}

TEST(Hash, Golden64) {
  EXPECT_EQ(xxh3_64("", 0), 0x2d06800538d394c2ull);
  EXPECT_EQ(xxh3_64("abc", 3), 0x78af5f94892f3950ull);
  EXPECT_EQ(xxh3_64("abc", 3, 7), 0x48ff56f569e39912ull);
}

TEST(Hash, Golden128) {
  EXPECT_EQ(hash_of(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(hash_of("abc"), "06b05ab6733a618578af5f94892f3950");
}

TEST(Hash, StreamingDoesNotDependOnTheCuts) {
  std::string data;
  for (int i = 0; i < 1000; ++i) data += static_cast<char>(i * 7);
  EXPECT_EQ(hash_of(data), "abee229cdadad76d10ad30264426c830");
  for (const std::size_t cut : {0, 1, 15, 16, 17, 240, 241, 256, 999, 1000}) {
    Hasher hasher;
    hasher.update(data.data(), cut);
    hasher.update(data.data() + cut, data.size() - cut);
    ASSERT_EQ(hasher.hex(), hash_of(data)) << cut;
  }
}

TEST(Hash, EveryBitCounts) {
  std::string data(300, '\0');
  const std::string before = hash_of(data);
  for (std::size_t bit = 0; bit < data.size() * 8; ++bit) {
    data[bit / 8] = static_cast<char>(data[bit / 8] ^ 1 << bit % 8);
    ASSERT_NE(hash_of(data), before) << bit;
    data[bit / 8] = static_cast<char>(data[bit / 8] ^ 1 << bit % 8);
  }
}

TEST(Hash, MovesAndGoesOn) {
  Hasher first;
  first.update("a", 1);
  Hasher second = std::move(first);
  second.update("bc", 2);
  EXPECT_EQ(second.hex(), hash_of("abc"));
}

}  // namespace
}  // namespace zinf
