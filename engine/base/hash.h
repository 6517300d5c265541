// xxh3, 64 and 128 bits, streaming. Not cryptographic: finds damage and differences, not malice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace zinf {

std::uint64_t xxh3_64(const void* data, std::size_t bytes, std::uint64_t seed = 0);

// xxh3_64 with seed 0 of whole blocks that come in parts: at the speed of the loop over one part.
class BlockHasher {
 public:
  static constexpr std::size_t kBlock = 1024;

  BlockHasher() { reset(); }
  void reset();
  // All blocks but the last.
  void update(const void* data, std::size_t blocks);
  // The value with the last block; bytes: of all blocks.
  std::uint64_t finish(const void* last_block, std::uint64_t bytes) const;

 private:
  alignas(64) std::uint64_t lanes_[8];
};

// Streaming 128-bit hash; hex() gives 32 lower-case digits and may be called once all data is in.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  void update(const void* data, std::size_t bytes);
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace zinf
