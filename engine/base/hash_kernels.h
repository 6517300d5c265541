// Internal: xxh3 compiled for one instruction set. The same results everywhere; wider is faster.
#pragma once

#include <cstddef>
#include <cstdint>

namespace zinf {

struct HashKernels {
  std::uint64_t (*one_shot)(const void* data, std::size_t bytes);
  void (*reset)(void* state);
  void (*update)(void* state, const void* data, std::size_t bytes);
  std::uint64_t (*digest)(const void* state);
};

constexpr std::size_t kHashStateBytes = 576;

const HashKernels& plain_hash_kernels();
#if defined(__x86_64__)
const HashKernels& avx2_hash_kernels();
const HashKernels& avx512_hash_kernels();
#endif

}  // namespace zinf
