// A keyed permutation of 0 .. n-1 that needs no table: the value for any index is computed on its
// own. Balanced Feistel network with cycle walking (Black, Rogaway 2002). Golden values are pinned
// in tests/data/permutation_test.cc; a change here changes the data order of every run.
#pragma once

#include <cstdint>

#include "engine/base/error.h"
#include "engine/base/random.h"

namespace zinf::data {

class Permutation {
 public:
  Permutation(std::uint64_t n, std::uint64_t key) : n_(n), key_(key) {
    while ((std::uint64_t{1} << (2 * half_bits_)) < n) ++half_bits_;
    mask_ = (std::uint64_t{1} << half_bits_) - 1;
  }

  // index < n.
  std::uint64_t operator()(std::uint64_t index) const {
    ZINF_CHECK(index < n_, "index of a permutation");  // else the walk might never end
    std::uint64_t value = index;
    do {
      value = encrypt(value);
    } while (value >= n_);  // the domain is less than 4 n, except for n < 16
    return value;
  }

  std::uint64_t size() const { return n_; }

 private:
  std::uint64_t encrypt(std::uint64_t value) const {
    std::uint64_t left = value >> half_bits_;
    std::uint64_t right = value & mask_;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t next = left ^ (random_bits(key_ + round, right) & mask_);
      left = right;
      right = next;
    }
    return left << half_bits_ | right;
  }

  static constexpr std::uint64_t kRounds = 8;
  std::uint64_t n_;
  std::uint64_t key_;
  int half_bits_ = 3;
  std::uint64_t mask_ = 0;
};

}  // namespace zinf::data
