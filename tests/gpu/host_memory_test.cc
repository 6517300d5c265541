#include "gpu/host_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/machine.h"

namespace zinf::gpu {
namespace {

std::size_t resident_pages(const HostMemory& memory) {
  std::vector<unsigned char> pages((memory.size() + 4095) / 4096);
  EXPECT_EQ(mincore(memory.data(), memory.size(), pages.data()), 0);
  std::size_t count = 0;
  for (const unsigned char page : pages) count += page & 1;
  return count;
}

TEST(HostMemory, IsOfExactSizeAlignedAndZero) {
  for (const Bytes bytes :
       {Bytes{1}, Bytes{4096}, Bytes{4097}, 2 * kMiB - 1, 2 * kMiB, 5 * kMiB + 123}) {
    const HostMemory memory(bytes, "a test");
    EXPECT_EQ(memory.size(), round_up(bytes, 4096));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) %
                  (memory.size() >= 2 * kMiB ? 2 * kMiB : 4096),
              0u);
    EXPECT_EQ(static_cast<int>(memory.data()[0]), 0);
    EXPECT_EQ(static_cast<int>(memory.data()[memory.size() - 1]), 0);
    memory.data()[0] = memory.data()[memory.size() - 1] = std::byte{7};
  }
  EXPECT_EQ(HostMemory(0, "nothing").data(), nullptr);
}

TEST(HostMemory, NothingIsResidentBeforeItIsTouched) {
  const HostMemory memory(64 * kMiB, "a test");
  EXPECT_EQ(resident_pages(memory), 0u);
  memory.data()[10 * kMiB] = std::byte{1};
  EXPECT_GE(resident_pages(memory), 1u);
  EXPECT_LE(resident_pages(memory), 512u);  // one huge page
}

// Needs reserved pages: sysctl vm.nr_hugepages.
TEST(HostMemory, TakesReservedHugePagesWhereTheyHoldAllOfIt) {
  Bytes free = 0;
  std::ifstream info("/proc/meminfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("HugePages_Free:", 0) == 0) free = std::stoull(line.substr(15)) * 2 * kMiB;
  }
  if (free < 4 * kMiB) GTEST_SKIP() << "no reserved huge pages";
  const Bytes before = resident_bytes();
  HostMemory memory(4 * kMiB + 4096, "a test");
  EXPECT_EQ(memory.pages(), PageKind::kHugeReserved);
  std::memset(memory.data(), 3, memory.size());  // the tail lies on small pages
  EXPECT_GE(resident_bytes(), before + 4 * kMiB);
  EXPECT_EQ(HostMemory(free, "more than is left").pages(), PageKind::kHugeTransparent);
}

TEST(HostMemory, MovesAndFreesOnce) {
  HostMemory a(3 * kMiB, "a");
  std::byte* data = a.data();
  data[5] = std::byte{42};
  HostMemory b = std::move(a);
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(a.data(), nullptr);  // NOLINT: that is the point
  EXPECT_EQ(a.size(), 0u);
  b = HostMemory(4096, "other");
  EXPECT_NE(b.data(), nullptr);
  unsigned char page = 0;
  EXPECT_NE(mincore(data, 4096, &page), 0);  // unmapped
}

TEST(HostMemory, TooMuchIsAnErrorWithASize) {
  try {
    const HostMemory memory(Bytes{1} << 60, "the host arena");
    FAIL() << "an exbibyte";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDoesNotFit);
    EXPECT_NE(std::string(error.what()).find("for the host arena"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace zinf::gpu
