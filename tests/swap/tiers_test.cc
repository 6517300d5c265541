#include "swap/tiers.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "nvme/uring_probe.h"
#include "tests/nvme/test_support.h"

namespace zinf::swap {
namespace {

class TiersTest : public ::testing::Test {
 protected:
  TiersTest() {
    char name[] = "/var/tmp/zinf-tiers-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~TiersTest() override { std::filesystem::remove_all(folder_); }

  TierOptions options() const {
    TierOptions options;
    options.device_arena = options.device_budget = 64 * kKiB;
    options.host_arena = 64 * kKiB;
    options.host_base = kMiB;
    options.host_budget = kMiB + 64 * kKiB;
    options.extents = {{8192, 2, false}, {4096, 1, false}, {4096, 1, true}};
    nvme::StoreOptions store;
    nvme::DriveOptions drive;
    drive.path = folder_;
    store.drives = {drive};
    options.nvme = store;
    return options;
  }

  static void write(Tiers& tiers, int extent, int slot, char value, Bytes bytes) {
    std::memset(tiers.host_arena(), value, bytes);
    std::promise<nvme::IoResult> done;
    tiers.write(extent, slot, 0, tiers.host_arena(), bytes,
                [&](const nvme::IoResult& result) { done.set_value(result); });
    done.get_future().get().throw_if_failed();
  }
  static char read(Tiers& tiers, int extent, int slot, Bytes bytes) {
    std::memset(tiers.host_arena(), 0, bytes);
    std::promise<nvme::IoResult> done;
    tiers.read(extent, slot, 0, tiers.host_arena(), bytes,
               [&](const nvme::IoResult& result) { done.set_value(result); });
    done.get_future().get().throw_if_failed();
    for (Bytes i = 1; i < bytes; ++i) EXPECT_EQ(tiers.host_arena()[i], tiers.host_arena()[0]);
    return static_cast<char>(tiers.host_arena()[0]);
  }
  std::size_t files() const {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      count += entry.is_regular_file();
    return count;
  }

  std::string folder_;
};

// Before its pages are locked or touched.
TEST_F(TiersTest, TheHostArenaCanBePlaced) {
  TierOptions placed = options();
  std::byte* seen = nullptr;
  unsigned char resident = 1;
  placed.place_host = [&](std::byte* arena) {
    seen = arena;
    EXPECT_EQ(0, mincore(arena, 4096, &resident));
  };
  Tiers tiers(placed);
  EXPECT_EQ(seen, tiers.host_arena());
  EXPECT_EQ(resident & 1, 0);
}

TEST_F(TiersTest, SlotsAndExtentsAreApart) {
  Tiers tiers(options());
  EXPECT_EQ(tiers.device_budget().used(), 64 * kKiB);
  EXPECT_EQ(tiers.host_budget().used(), tiers.host_budget().limit());
  EXPECT_GE(tiers.nvme_bytes(), 2u * 8192 + 4096 + 4096);
  write(tiers, 0, 0, 'a', 8192);
  write(tiers, 0, 1, 'b', 8192);
  write(tiers, 1, 0, 'c', 4096);
  write(tiers, 2, 0, 'd', 4096);
  EXPECT_EQ(read(tiers, 0, 0, 8192), 'a');
  EXPECT_EQ(read(tiers, 0, 1, 8192), 'b');
  EXPECT_EQ(read(tiers, 1, 0, 4096), 'c');
  EXPECT_EQ(read(tiers, 1, 1, 4096), 'c');  // a single slot, whatever the number
  EXPECT_EQ(read(tiers, 2, 0, 4096), 'd');
  const auto counters = tiers.counters();
  ASSERT_EQ(counters.size(), 1u);
  EXPECT_EQ(counters[0].lane.bytes_written, 2u * 8192 + 2 * 4096);
  EXPECT_EQ(counters[0].lane.bytes_read, 2u * 8192 + 3 * 4096);
}

TEST_F(TiersTest, TheStateSurvivesAndTheScratchAreaGoes) {
  {
    Tiers tiers(options());
    write(tiers, 0, 1, 'x', 8192);
    write(tiers, 2, 0, 'y', 4096);
    std::promise<nvme::IoResult> done;
    tiers.sync([&](const nvme::IoResult& result) { done.set_value(result); });
    EXPECT_TRUE(done.get_future().get().ok());
    EXPECT_EQ(files(), 2u);
  }
  EXPECT_EQ(files(), 1u);
  TierOptions again = options();
  again.open_mode = nvme::OpenMode::kReopen;
  Tiers tiers(again);
  EXPECT_EQ(read(tiers, 0, 1, 8192), 'x');
}

TEST_F(TiersTest, APageTableOfAnotherVersionOrLayoutIsNotTaken) {
  TierOptions whole = options();
  whole.extents = {{kMiB, 2, false}};
  whole.host_arena = whole.host_budget = kMiB;
  whole.host_base = 0;
  Tiers tiers(whole);
  write(tiers, 0, 1, 'x', kMiB);
  const std::string table = tiers.save_pages(1, 1);
  EXPECT_EQ(table.size(), 16u + 4 * 8);
  const auto why = [&](const std::string& other) -> std::string {
    try {
      tiers.load_pages(1, 1, other, "step 4");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(why(table), "");
  std::string newer = table;
  newer.replace(newer.find("v1"), 2, "v2");
  EXPECT_NE(why(newer).find("the page table of step 4: format \"zinf-pages-v2\", this zinf reads "
                            "zinf-pages-v1"),
            std::string::npos)
      << why(newer);
  for (const std::string& other : {table + std::string(8, 'x'), table.substr(0, table.size() - 8)})
    EXPECT_NE(why(other).find("expected 48 bytes, found"), std::string::npos) << why(other);
  EXPECT_NE(why(""), "");
  EXPECT_EQ(why(table), "");
}

TEST_F(TiersTest, WhatDoesNotFitIsRefusedBeforeAnythingIsMade) {
  TierOptions tight = options();
  tight.host_budget -= 1;
  EXPECT_THROW(Tiers{tight}, Error);
  tight = options();
  tight.device_arena += 1;
  EXPECT_THROW(Tiers{tight}, Error);
  EXPECT_EQ(files(), 0u);
}

// Locked pages of this process, as the kernel counts them.
Bytes kernel_pinned() {
  std::ifstream status("/proc/self/status");
  Bytes kib = 0;
  for (std::string name; status >> name;) {
    if (name == "VmPin:") status >> kib;
  }
  return kib * kKiB;
}

// In children, since what a process has locked is let go some time after a ring's end.
TEST_F(TiersTest, PinsTheHostArenaOnlyWhereAsked) {
  TierOptions arena = options();
  arena.open_mode = nvme::OpenMode::kReplace;
  const bool can = nvme::why_unavailable(nvme::EngineKind::kIoUring, 1).empty() &&
                   nvme::registration_refusal(arena.host_arena).empty();
  for (const bool pin : {true, false}) {
    arena.pin = pin;
    EXPECT_EQ(nvme::in_child([&] {
                Tiers tiers(arena);
                for (int extent : {0, 1, 2}) write(tiers, extent, 0, 'a', 4096);
                const std::string bytes = read(tiers, 0, 0, 4096) == 'a' ? "" : "other bytes, ";
                return bytes + str(tiers.pinned_bytes(), " pinned, locked: ", kernel_pinned() > 0);
              }),
              pin && can ? str(arena.host_arena, " pinned, locked: 1") : "0 pinned, locked: 0");
  }
}

TEST_F(TiersTest, WithoutADriveASyncIsDoneAtOnce) {
  TierOptions options;
  options.host_arena = options.host_budget = 4096;
  Tiers tiers(options);
  bool done = false;
  tiers.sync([&](const nvme::IoResult& result) { done = result.ok(); });
  EXPECT_TRUE(done);
  EXPECT_EQ(tiers.store(), nullptr);
  EXPECT_EQ(tiers.nvme_bytes(), 0u);
  EXPECT_TRUE(tiers.counters().empty());
}

}  // namespace
}  // namespace zinf::swap
