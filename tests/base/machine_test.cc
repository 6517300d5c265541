// What the machine says differs from one to the next; what must hold on all is tested.
#include "engine/base/machine.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "engine/base/str.h"

namespace zinf {
namespace {

TEST(Machine, CoresAreWithinTheAffinityMask) {
  const int cores = usable_cores();
  EXPECT_GE(cores, 1);
  EXPECT_LE(cores, static_cast<int>(std::thread::hardware_concurrency()));
}

TEST(Machine, CoresFollowTheAffinityMask) {
  int cores = 0;
  // In a thread of its own: the mask is the thread's.
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    cores = usable_cores();
  }).join();
  EXPECT_EQ(cores, 1);
}

// Four processors on two cores, a fifth that says nothing of its topology.
TEST(Machine, PhysicalCoresAreCountedOnce) {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / str("zinf-topology-", getpid());
  const char* siblings[] = {"0,2", "1,3", "0,2", "1,3"};
  for (int cpu = 0; cpu < 4; ++cpu) {
    const auto topology = folder / str("cpu", cpu) / "topology";
    std::filesystem::create_directories(topology);
    std::ofstream(topology / "thread_siblings_list") << siblings[cpu] << "\n";
  }
  const auto count = [&](std::vector<int> processors) {
    return count_physical_cores(processors, folder.string());
  };
  EXPECT_EQ(2, count({0, 1, 2, 3}));
  EXPECT_EQ(1, count({0, 2}));
  EXPECT_EQ(2, count({2, 3}));
  EXPECT_EQ(3, count({0, 1, 2, 3, 4}));
  EXPECT_EQ(0, count({}));
  EXPECT_GE(usable_physical_cores(), 1);
  EXPECT_LE(usable_physical_cores(), usable_cores());
  std::filesystem::remove_all(folder);
}

// Two nodes of two cores with two hardware threads each, and one with memory alone.
TEST(Machine, NumaNodesAreThoseWithUsableProcessors) {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / str("zinf-nodes-", getpid());
  const std::string nodes = (folder / "node").string(), cpus = (folder / "cpu").string();
  const char* lists[] = {"0-1,4-5", "2-3,6-7", ""};
  for (int node = 0; node < 3; ++node) {
    std::filesystem::create_directories(folder / "node" / str("node", node));
    std::ofstream(folder / "node" / str("node", node) / "cpulist") << lists[node] << "\n";
  }
  std::ofstream(folder / "node" / "online") << "0-2\n";
  for (int cpu = 0; cpu < 8; ++cpu) {
    const auto topology = folder / "cpu" / str("cpu", cpu) / "topology";
    std::filesystem::create_directories(topology);
    std::ofstream(topology / "thread_siblings_list") << cpu % 4 << "," << cpu % 4 + 4 << "\n";
  }
  const auto found = [&](std::vector<int> processors) {
    return numa_nodes(processors, nodes, cpus);
  };
  const auto all = found({0, 1, 2, 3, 4, 5, 6, 7});
  ASSERT_EQ(2u, all.size());
  EXPECT_EQ(0, all[0].id);
  EXPECT_EQ((std::vector<int>{0, 1, 4, 5}), all[0].processors);
  EXPECT_EQ(2, all[0].physical_cores);
  EXPECT_EQ(1, all[1].id);
  EXPECT_EQ((std::vector<int>{2, 3, 6, 7}), all[1].processors);
  // A mask that leaves one node, one that leaves a part of both, and a system without nodes.
  const auto one = found({2, 6});
  ASSERT_EQ(1u, one.size());
  EXPECT_EQ(1, one[0].id);
  EXPECT_EQ(1, one[0].physical_cores);
  const auto part = found({1, 2, 3});
  ASSERT_EQ(2u, part.size());
  EXPECT_EQ(1, part[0].physical_cores);
  EXPECT_EQ(2, part[1].physical_cores);
  const auto none = numa_nodes(std::vector<int>{0, 1}, str(nodes, "-absent"), cpus);
  ASSERT_EQ(1u, none.size());
  EXPECT_EQ((std::vector<int>{0, 1}), none[0].processors);
  std::filesystem::remove_all(folder);

  std::vector<int> here;
  for (const NumaNode& node : usable_numa_nodes())
    here.insert(here.end(), node.processors.begin(), node.processors.end());
  std::sort(here.begin(), here.end());
  EXPECT_EQ(usable_processors(), here);
}

TEST(Machine, MemoryIsOrdered) {
  const auto physical =
      static_cast<Bytes>(sysconf(_SC_PHYS_PAGES)) * static_cast<Bytes>(sysconf(_SC_PAGESIZE));
  EXPECT_GT(usable_memory(), 0u);
  EXPECT_LE(usable_memory(), physical);
  EXPECT_LE(memory_limit(), physical);
  EXPECT_GT(memory_limit(), 0u);
}

TEST(Machine, ResidentMemoryFollowsTouchedPages) {
  constexpr Bytes kSize = 64 * kMiB;
  const Bytes before = resident_bytes();
  void* block = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(block, MAP_FAILED);
  std::memset(block, 1, kSize);
  const Bytes during = resident_bytes();
  const Bytes peak = peak_resident_bytes();
  ::munmap(block, kSize);
  // The kernel counts in batches per thread: allow it a few MiB.
  EXPECT_GE(during + 4 * kMiB, before + kSize);
  EXPECT_GE(peak + 4 * kMiB, during);
  EXPECT_GE(peak_resident_bytes() + 4 * kMiB, during);  // the peak stays
  EXPECT_LT(resident_bytes(), during);
}

TEST(Machine, LineNamesCoresMemoryAndKernel) {
  const std::string line = machine_line();
  EXPECT_NE(line.find(str(usable_cores(), " cores, ")), std::string::npos) << line;
  EXPECT_NE(line.find("Linux "), std::string::npos) << line;
  EXPECT_EQ(line.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace zinf
