#include "swap/budget.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "engine/base/error.h"

namespace zinf::swap {
namespace {

TEST(Budget, GivesOutNoMoreThanItsLimit) {
  Budget budget("host", 100);
  Reservation first = budget.reserve("weights", 60);
  EXPECT_EQ(budget.used(), 60u);
  {
    const Reservation second = budget.reserve("the ring", 40);
    EXPECT_EQ(budget.used(), 100u);
    EXPECT_THROW(budget.reserve("one more byte", 1), Error);
    EXPECT_EQ(budget.used(), 100u);
  }
  EXPECT_EQ(budget.used(), 60u);
  EXPECT_EQ(budget.peak(), 100u);
}

TEST(Budget, ARefusalNamesWhoHoldsWhatAndWhatWouldDo) {
  Budget budget("host", 10 * kMiB);
  const Reservation small = budget.reserve("runtime base", kMiB);
  const Reservation large = budget.reserve("the host arena", 6 * kMiB);
  try {
    budget.reserve("the device arena", 4 * kMiB);
    FAIL() << "over the budget";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDoesNotFit);
    EXPECT_STREQ(error.what(),
                 "the host budget is too small for the device arena: needs 4.00 MiB, used 7.00 MiB "
                 "of 10.0 MiB; "
                 "largest holders: the host arena 6.00 MiB, runtime base 1.00 MiB\n"
                 "  hint: raise memory.host to at least 11.0 MiB");
  }
}

TEST(Budget, SizesDoNotWrapAround) {
  Budget budget("device", 100);
  const Reservation some = budget.reserve("some", 50);
  EXPECT_THROW(budget.reserve("all there is", ~Bytes{0}), Error);
  EXPECT_EQ(budget.reserve("nothing", 0).bytes(), 0u);
}

TEST(Reservation, MovesAndGivesBackOnce) {
  Budget budget("host", 100);
  Reservation a = budget.reserve("a", 30);
  Reservation b = std::move(a);
  EXPECT_EQ(b.bytes(), 30u);
  EXPECT_EQ(budget.used(), 30u);
  b = budget.reserve("b", 20);
  EXPECT_EQ(budget.used(), 20u);
  Reservation& same = b;
  b = std::move(same);
  EXPECT_EQ(budget.used(), 20u);
  b = Reservation();
  EXPECT_EQ(budget.used(), 0u);
}

TEST(Budget, HoldsUnderThreads) {
  Budget budget("host", 1000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        try {
          const Reservation some = budget.reserve("thread", 300);
        } catch (const Error&) {
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.used(), 0u);
  EXPECT_LE(budget.peak(), 900u);  // three at most
}

}  // namespace
}  // namespace zinf::swap
