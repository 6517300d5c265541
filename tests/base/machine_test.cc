// What the machine says differs from one to the next; what must hold on all is tested.
#include "engine/base/machine.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

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
