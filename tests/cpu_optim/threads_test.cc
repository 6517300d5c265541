#include "cpu_optim/threads.h"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <utility>
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

// Two nodes made up of this machine's processors, of three cores and one.
std::vector<NumaNode> two_nodes() {
  const std::vector<int> processors = usable_processors();
  return {{0, {processors.front()}, 3}, {0, {processors.back()}, 1}};
}

TEST(Pool, ExceptionsComeBack) {
  for (const std::vector<NumaNode>& nodes : {usable_numa_nodes(), two_nodes()}) {
    const Pool pool(4, nodes);
    for (const std::int64_t bad : {0, 1 << 19, (1 << 20) - 1}) {
      EXPECT_THROW(pool.for_ranges(1 << 20,
                                   [&](std::int64_t begin, std::int64_t end) {
                                     if (begin <= bad && bad < end)
                                       throw std::runtime_error("fault");
                                   }),
                   std::runtime_error);
    }
  }
}

// Each node works on the same contiguous share of a range every time, by its cores, with threads
// that stay on its processors; the caller's thread gets its own back.
TEST(Pool, NodesKeepTheirShares) {
  const std::vector<int> before = usable_processors();
  const std::vector<NumaNode> nodes = two_nodes();
  const Pool pool(4, nodes);
  ASSERT_EQ(2, pool.nodes());
  constexpr std::int64_t kElements = 100 * kTile + 17;
  constexpr std::int64_t kBorder = 101 * 3 / 4 * kTile;
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::mutex mutex;
    std::vector<int> seen(kElements);
    pool.for_ranges(kElements, [&](std::int64_t begin, std::int64_t end) {
      const std::lock_guard lock(mutex);
      EXPECT_TRUE(end <= kBorder || begin >= kBorder) << begin << " to " << end;
      EXPECT_EQ(nodes[begin < kBorder ? 0 : 1].processors, usable_processors()) << begin;
      for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
    });
    EXPECT_EQ(std::vector<int>(kElements, 1), seen);
    EXPECT_EQ(before, usable_processors());
  }
  // A node that gets no thread is none; threads on one node go where they like.
  const Pool one(1, nodes);
  EXPECT_EQ(1, one.nodes());
  one.for_ranges(kElements,
                 [&](std::int64_t, std::int64_t) { EXPECT_EQ(before, usable_processors()); });
}

// The policy of the page at this address: mode and nodes.
std::pair<int, unsigned long> policy_at(const std::byte* address) {
  constexpr int kOfAddress = 2;  // MPOL_F_ADDR
  int mode = -1;
  unsigned long nodes[16] = {};
  if (syscall(SYS_get_mempolicy, &mode, nodes, 8 * sizeof nodes, address, kOfAddress) != 0)
    return {-1, 0};
  return {mode, nodes[0]};
}

// Each share's pages prefer its node, from the first whole page to the last, and no other page
// does.
TEST(Pool, PlacesEachShareOnItsNode) {
  constexpr Bytes kHuge = 2 * kMiB, kBytes = 8 * kHuge, kPage = 4096;
  constexpr std::size_t kMapped = kBytes + 3 * kHuge;
  void* const mapping =
      mmap(nullptr, kMapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(MAP_FAILED, mapping);
  std::byte* const data =
      reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::uintptr_t>(mapping), kHuge)) +
      kPage;
  std::vector<NumaNode> nodes = two_nodes();
  Pool(4, {nodes[0]}).place(data, kBytes);
  const std::pair<int, unsigned long> nowhere{0, 0}, preferred{1, 1};
  if (policy_at(data).first < 0) GTEST_SKIP() << "the system tells nothing of memory's place";
  EXPECT_EQ(nowhere, policy_at(data));
  nodes[1].id = 63;  // there is no such node: its pages stay as they are
  Pool(4, nodes).place(data, kBytes);
  if (policy_at(data) == nowhere) GTEST_SKIP() << "the system does not let memory be placed";
  EXPECT_EQ(preferred, policy_at(data));
  EXPECT_EQ(nowhere, policy_at(data - kPage));
  // Three quarters of it, to the next huge page.
  EXPECT_EQ(preferred, policy_at(data - kPage + 7 * kHuge - kPage));
  EXPECT_EQ(nowhere, policy_at(data - kPage + 7 * kHuge));
  nodes[1].id = 0;
  Pool(4, nodes).place(data, kBytes);
  EXPECT_EQ(preferred, policy_at(data - kPage + 7 * kHuge));
  EXPECT_EQ(preferred, policy_at(data + kBytes - kPage));
  EXPECT_EQ(nowhere, policy_at(data + kBytes));
  munmap(mapping, kMapped);
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
