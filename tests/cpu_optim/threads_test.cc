#include "cpu_optim/threads.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "cpu_optim/state_schema.h"
#include "engine/base/machine.h"

namespace zinf::optim {
namespace {

TEST(Pool, CoversEachElementOnce) {
  for (const int threads : {1, 2, 4}) {
    const Pool pool(threads);
    EXPECT_EQ(threads, pool.threads());
    for (const std::int64_t elements : {0, 1, 4095, 4096, 4097, 300001}) {
      std::vector<int> seen(static_cast<std::size_t>(elements));
      std::mutex mutex;
      pool.for_ranges(elements, [&](std::int64_t begin, std::int64_t end) {
        const std::lock_guard lock(mutex);
        EXPECT_EQ(0, begin % kTile);
        EXPECT_TRUE(end == elements || end % kTile == 0);
        for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
      });
      EXPECT_EQ(std::vector<int>(static_cast<std::size_t>(elements), 1), seen);
    }
  }
}

TEST(Pool, ExceptionsComeBack) {
  const Pool pool(2);
  EXPECT_THROW(pool.for_ranges(
                   1 << 20, [](std::int64_t, std::int64_t) { throw std::runtime_error("fault"); }),
               std::runtime_error);
}

// A launcher's one-thread variable does not count; local ranks share the cores.
TEST(Pool, DefaultIsThisRanksShareOfTheCores) {
  setenv("OMP_NUM_THREADS", "1", 1);
  EXPECT_EQ(usable_physical_cores(), default_threads());
  EXPECT_EQ(1, default_threads(usable_physical_cores()));
  EXPECT_EQ(1, default_threads(usable_physical_cores() + 1));
  EXPECT_EQ(usable_physical_cores(), Pool().threads());
}

}  // namespace
}  // namespace zinf::optim
