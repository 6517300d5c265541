#include "cpu_optim/bench.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace zinf::optim {
namespace {

// Figures are consistent; how fast it is decides nothing.
TEST(Bench, RowsAreConsistent) {
  Pool pool(2);
  for (const Isa isa : available_isas()) {
    for (const Format& format : bench_formats()) {
      const BenchRow row = bench_update(format, isa, pool, 10000, 2);
      EXPECT_EQ(12288, row.elements);
      EXPECT_EQ(2, row.threads);
      EXPECT_EQ(isa, row.isa);
      EXPECT_EQ(format, row.format);
      EXPECT_GT(row.seconds, 0);
      EXPECT_GT(row.limit_seconds, 0);
      EXPECT_GT(row.share_of_bandwidth, 0);
      EXPECT_EQ(2u, row.shares.size());
      ASSERT_EQ(2u, row.phase_seconds.size());
      // The phase is the norm and then the update, whose median is between these two.
      EXPECT_GT(std::max(row.phase_seconds[0], row.phase_seconds[1]), row.seconds);
      EXPECT_DOUBLE_EQ(row.elements / row.seconds, row.elements_per_second);
      EXPECT_DOUBLE_EQ(row.elements_per_second * row.bytes_per_element / 1e9, row.gb_per_second);
    }
    EXPECT_EQ(4, bench_norm(isa, pool, 10000, 2).bytes_per_element);
  }
}

TEST(Bench, CountsLoadsAndStores) {
  Pool pool(1);
  const auto bytes = [&](const Format& format) {
    return bench_update(format, best_isa(), pool, 1, 1).bytes_per_element;
  };
  EXPECT_EQ(28, bytes({}));
  EXPECT_EQ(28, bytes({Algorithm::kAdamW, WeightDtype::kBf16, MasterWeights::kSplit}));
  EXPECT_EQ(30, bytes({Algorithm::kAdamW, WeightDtype::kBf16, MasterWeights::kFp32}));
  EXPECT_EQ(12.0625, bytes({Algorithm::kAdamW, WeightDtype::kBf16, MasterWeights::kBf16Sr,
                            StateDtype::kInt8}));
  EXPECT_EQ(Bytes{4096 * 16}, bench_bytes({}, 1));
}

TEST(Bench, NamesFormats) {
  EXPECT_EQ("fp32/fp32/fp32", format_name(bench_formats().front()));
  EXPECT_EQ("bf16/int8/bf16-sr", format_name(bench_formats().back()));
}

}  // namespace
}  // namespace zinf::optim
