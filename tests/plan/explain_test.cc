#include "engine/plan/explain.h"

#include <gtest/gtest.h>

namespace zinf::plan {
namespace {

TEST(Explain, TextbookColumnForSevenBillionOnEightRanks) {
  EXPECT_DOUBLE_EQ(textbook_bytes_per_rank(7e9, 0, 8), 112e9);
  EXPECT_DOUBLE_EQ(textbook_bytes_per_rank(7e9, 1, 8), 38.5e9);
  EXPECT_DOUBLE_EQ(textbook_bytes_per_rank(7e9, 2, 8), 26.25e9);
  EXPECT_DOUBLE_EQ(textbook_bytes_per_rank(7e9, 3, 8), 14e9);
  EXPECT_DOUBLE_EQ(textbook_bytes_per_rank(7e9, 3, 1), 112e9);
}

TEST(Explain, KnowsGpusByAnySpelling) {
  ASSERT_TRUE(find_gpu("rtx 4090"));
  EXPECT_EQ(find_gpu("RTX4090")->memory, 24 * kGiB);
  EXPECT_EQ(find_gpu("a100-80")->memory, 80 * kGiB);
  EXPECT_FALSE(find_gpu("RTX"));
  EXPECT_NE(gpu_names().find("H100"), std::string::npos);
}

}  // namespace
}  // namespace zinf::plan
