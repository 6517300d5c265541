#include "engine/data/permutation.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace zinf::data {
namespace {

std::vector<std::uint64_t> all(std::uint64_t n, std::uint64_t key) {
  const Permutation order(n, key);
  std::vector<std::uint64_t> values;
  for (std::uint64_t i = 0; i < n; ++i) values.push_back(order(i));
  return values;
}

TEST(Permutation, IsABijectionForEverySmallSize) {
  for (std::uint64_t n = 1; n < 200; ++n) {
    std::vector<bool> seen(n, false);
    for (const std::uint64_t value : all(n, 7 * n)) {
      ASSERT_LT(value, n);
      ASSERT_FALSE(seen[value]) << n;
      seen[value] = true;
    }
  }
}

TEST(Permutation, GoldenValues) {
  EXPECT_EQ(all(10, 1), (std::vector<std::uint64_t>{3, 4, 9, 6, 1, 2, 5, 7, 0, 8}));
  EXPECT_EQ(all(10, 2), (std::vector<std::uint64_t>{6, 3, 0, 5, 1, 7, 9, 2, 8, 4}));
  const Permutation large(std::uint64_t{1} << 40, 42);
  EXPECT_EQ(large(0), 324502959790u);
  EXPECT_EQ(large(123456789), 860815716397u);
}

// Of 4 elements all 24 orders come up about equally often: 24,000 keys, 1,000 each, 5 standard
// deviations.
TEST(Permutation, SmallOrdersAreUniform) {
  std::map<std::vector<std::uint64_t>, int> count;
  for (std::uint64_t key = 0; key < 24000; ++key) ++count[all(4, random_key(key))];
  EXPECT_EQ(count.size(), 24u);
  for (const auto& [order, times] : count) EXPECT_NEAR(times, 1000, 155);
}

}  // namespace
}  // namespace zinf::data
