// Internal: xxh3 compiled for one instruction set. The same results everywhere; wider is faster.
#pragma once

#include <cstddef>
#include <cstdint>

namespace zinf {

constexpr int kHashLanes = 8;

struct HashKernels {
  std::uint64_t (*one_shot)(const void* data, std::size_t bytes);
  // BlockHasher's parts.
  void (*reset)(std::uint64_t* lanes);
  void (*update)(std::uint64_t* lanes, const void* data, std::size_t blocks);
  std::uint64_t (*finish)(const std::uint64_t* lanes, const void* last_block, std::uint64_t bytes);
};

const HashKernels& plain_hash_kernels();
#if defined(__x86_64__)
const HashKernels& avx2_hash_kernels();
const HashKernels& avx512_hash_kernels();
#endif

}  // namespace zinf
