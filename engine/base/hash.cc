#include "engine/base/hash.h"

#include <xxhash.h>

#include <cstdio>

#include "engine/base/hash_kernels.h"

namespace zinf {

namespace {

const HashKernels& best_kernels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return avx512_hash_kernels();
  if (__builtin_cpu_supports("avx2")) return avx2_hash_kernels();
#endif
  return plain_hash_kernels();
}

const HashKernels& kernels() {
  static const HashKernels& best = best_kernels();
  return best;
}

}  // namespace

std::uint64_t xxh3_64(const void* data, std::size_t bytes, std::uint64_t seed) {
  return seed == 0 ? kernels().one_shot(data, bytes) : XXH3_64bits_withSeed(data, bytes, seed);
}

void BlockHasher::reset() {
  static_assert(sizeof lanes_ == kHashLanes * sizeof lanes_[0]);
  kernels().reset(lanes_);
}
void BlockHasher::update(const void* data, std::size_t blocks) {
  kernels().update(lanes_, data, blocks);
}
std::uint64_t BlockHasher::finish(const void* last_block, std::uint64_t bytes) const {
  return kernels().finish(lanes_, last_block, bytes);
}

struct Hasher::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

Hasher::Hasher() : state_(std::make_unique<State>()) { XXH3_128bits_reset(state_->xxh); }
Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;

void Hasher::update(const void* data, std::size_t bytes) {
  XXH3_128bits_update(state_->xxh, data, bytes);
}

std::string Hasher::hex() const {
  const XXH128_hash_t value = XXH3_128bits_digest(state_->xxh);
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(value.high64),
                static_cast<unsigned long long>(value.low64));
  return text;
}

}  // namespace zinf
