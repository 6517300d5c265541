// Internal: the whole of xxh3 for the instruction set of the source that includes this. All of it
// is static, so the linker can't take one set's code for another's.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "engine/base/hash_kernels.h"

namespace zinf {

namespace {

static_assert(sizeof(XXH3_state_t) <= kHashStateBytes);

std::uint64_t one_shot(const void* data, std::size_t bytes) { return XXH3_64bits(data, bytes); }
void reset(void* state) { XXH3_64bits_reset(static_cast<XXH3_state_t*>(state)); }
void update(void* state, const void* data, std::size_t bytes) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state), data, bytes);
}
std::uint64_t digest(const void* state) {
  return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state));
}

constexpr HashKernels kKernels = {one_shot, reset, update, digest};

}  // namespace

}  // namespace zinf
