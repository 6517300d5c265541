// Counter-based random numbers: a value depends on what it is for, never on the order of execution.
// Golden values are pinned in tests/base; changing any function here changes every run.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace zinf {

// SplitMix64's finaliser (Steele, Lea, Flood 2014): a bijection of 64 bits with good avalanche.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// The key of a stream: fold what it is for, one word after the other.
template <typename... Words>
constexpr std::uint64_t random_key(std::uint64_t first, Words... rest) {
  std::uint64_t key = mix64(first);
  ((key = mix64(key ^ static_cast<std::uint64_t>(rest))), ...);
  return key;
}

// The index-th 64 random bits of a stream.
constexpr std::uint64_t random_bits(std::uint64_t key, std::uint64_t index) {
  return mix64(key ^ mix64(index));
}

// Uniform in [0, 1), 53 bits.
constexpr double random_uniform(std::uint64_t key, std::uint64_t index) {
  return static_cast<double>(random_bits(key, index) >> 11) * 0x1.0p-53;
}

// Uniform integer in [0, bound) by multiply-shift; bound < 2^32 keeps the bias under 2^-32.
constexpr std::uint64_t random_below(std::uint64_t key, std::uint64_t index, std::uint64_t bound) {
  return static_cast<std::uint64_t>(
      (static_cast<unsigned __int128>(random_bits(key, index)) * bound) >> 64);
}

// Standard normal by Box-Muller.
inline double random_normal(std::uint64_t key, std::uint64_t index) {
  const double u = random_uniform(key, 2 * index);
  const double v = random_uniform(key, 2 * index + 1);
  return std::sqrt(-2.0 * std::log1p(-u)) * std::cos(2.0 * std::numbers::pi * v);
}

}  // namespace zinf
