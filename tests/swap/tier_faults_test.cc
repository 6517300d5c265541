// Tiers over a drive that misbehaves: what can be repaired gives the exact bytes, what cannot is an
// error that names the file, and a slot that was synced outlives a power loss.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/random.h"
#include "engine/base/str.h"
#include "nvme/fault_engine.h"
#include "nvme/page_checksums.h"
#include "swap/tiers.h"
#include "tests/step/temp_folder.h"
#include "tests/step/watchdog.h"

namespace zinf::swap {
namespace {

using nvme::FaultControl;
using nvme::FaultOptions;

constexpr Bytes kExtent = kMiB;  // four pages
constexpr int kSlots = 2;

TierOptions over(const std::string& folder, FaultControl& faults,
                 nvme::OpenMode mode = nvme::OpenMode::kReplace) {
  TierOptions options;
  options.host_arena = options.host_budget = 2 * kExtent;
  options.extents = {{kExtent, kSlots, false}, {kExtent, 1, true}};
  nvme::StoreOptions store;
  nvme::DriveOptions drive;
  drive.path = folder;
  store.drives = {drive};
  store.block_size = 64 * kKiB;
  store.depth = 4;
  store.stall_seconds = 1;
  store.wrap_engine = faults.wrapper();
  options.nvme = store;
  options.open_mode = mode;
  return options;
}

std::shared_ptr<FaultControl> faulty(const FaultOptions& options) {
  return std::make_shared<FaultControl>(options);
}

void wait_for(const std::function<void(nvme::IoCallback)>& start) {
  std::promise<nvme::IoResult> done;
  start([&](const nvme::IoResult& result) { done.set_value(result); });
  done.get_future().get().throw_if_failed();
}

void fill(std::byte* data, std::uint64_t seed) {
  for (Bytes i = 0; i < kExtent; i += 8) {
    const std::uint64_t word = random_bits(seed, i);
    std::memcpy(data + i, &word, 8);
  }
}

void write(Tiers& tiers, int extent, int slot, std::uint64_t seed) {
  fill(tiers.host_arena(), seed);
  wait_for([&](nvme::IoCallback done) {
    tiers.write(extent, slot, 0, tiers.host_arena(), kExtent, std::move(done));
  });
}

// Whether it holds what write() has put there.
bool holds(Tiers& tiers, int extent, int slot, std::uint64_t seed) {
  std::byte* const found = tiers.host_arena() + kExtent;
  wait_for(
      [&](nvme::IoCallback done) { tiers.read(extent, slot, 0, found, kExtent, std::move(done)); });
  fill(tiers.host_arena(), seed);
  return std::memcmp(found, tiers.host_arena(), kExtent) == 0;
}

void sync(Tiers& tiers) {
  wait_for([&](nvme::IoCallback done) { tiers.sync(std::move(done)); });
}

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(TierFaults, WhatCanBeRepairedGivesTheExactBytes) {
  const testing::TempFolder folder;
  std::uint64_t injected = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const testing::Watchdog watchdog(str("tiers, seed ", seed));
    const auto faults =
        faulty({.seed = seed, .short_share = 0.2, .again_share = 0.1, .delay_share = 0.3});
    Tiers tiers(over(folder.path(), *faults));
    for (int slot = 0; slot < kSlots; ++slot) write(tiers, 0, slot, 3 * seed + slot);
    write(tiers, 1, 0, 3 * seed + 2);
    sync(tiers);
    for (int slot = 0; slot < kSlots; ++slot) EXPECT_TRUE(holds(tiers, 0, slot, 3 * seed + slot));
    EXPECT_TRUE(holds(tiers, 1, 0, 3 * seed + 2)) << seed;
    injected += faults->injected();
  }
  EXPECT_GT(injected, 100u);
}

TEST(TierFaults, AnErrorOrSilenceNamesTheFile) {
  const testing::TempFolder folder;
  const testing::Watchdog watchdog("tiers over a failing drive");
  for (const auto& [options, said] :
       {std::pair{FaultOptions{.fail_block = 3}, "EIO"},
        {FaultOptions{.fail_block = 20, .error_number = ENOSPC}, "ENOSPC"},
        {FaultOptions{.drop_share = 1}, "no answer"}}) {
    const auto faults = faulty(options);
    Tiers tiers(over(folder.path(), *faults));
    const std::string error = error_of([&] {
      for (int slot = 0; slot < kSlots; ++slot) write(tiers, 0, slot, 1);
    });
    EXPECT_NE(error.find(folder.path()), std::string::npos) << error;
    EXPECT_NE(error.find(said), std::string::npos) << error;
  }
}

// Of states and of the scratch area, by the I/O lanes or by whoever has summed the pages.
TEST(TierFaults, AFlippedBitNamesFileAndPage) {
  const testing::TempFolder folder;
  const testing::Watchdog watchdog("flipped bits below the tiers");
  const auto faults = faulty({.seed = 4, .flip_share = 1});
  Tiers tiers(over(folder.path(), *faults));
  for (const int extent : {0, 1}) {
    write(tiers, extent, 0, 7);
    const std::string by_lane = error_of([&] { holds(tiers, extent, 0, 7); });
    EXPECT_NE(by_lane.find("is damaged"), std::string::npos) << by_lane;
    EXPECT_NE(by_lane.find(folder.path()), std::string::npos) << by_lane;
    std::byte* const found = tiers.host_arena() + kExtent;
    wait_for([&](nvme::IoCallback done) {
      tiers.read_unverified(extent, 0, 0, found, kExtent, std::move(done));
    });
    std::vector<std::uint64_t> sums(nvme::page_count(kExtent));
    nvme::hash_pages({found, kExtent}, sums);
    const std::string by_caller = error_of([&] { tiers.check_pages(extent, 0, 0, kExtent, sums); });
    EXPECT_NE(by_caller.find("page 0 of extent"), std::string::npos) << by_caller;
  }
}

// The machine dies while the other slot is written: what was synced is there, to the bit.
TEST(TierFaults, ASyncedSlotOutlivesAPowerLoss) {
  const testing::TempFolder folder;
  int torn = 0;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const testing::Watchdog watchdog(str("power loss below the tiers, seed ", seed));
    const auto faults = faulty({.seed = seed, .track_unsynced = true});
    std::string pages;
    {
      Tiers tiers(over(folder.path(), *faults));
      write(tiers, 0, 0, seed);
      write(tiers, 0, 1, seed + 100);
      sync(tiers);
      pages = tiers.save_pages(0, 1);
      write(tiers, 0, 1, seed + 200);
      faults->crash();
      EXPECT_NE(error_of([&] { sync(tiers); }), "");
    }
    EXPECT_GT(faults->forget_unsynced(), 0u);
    const auto none = faulty({});
    Tiers tiers(over(folder.path(), *none, nvme::OpenMode::kReopen));
    tiers.load_pages(0, 1, pages, "the commit");
    EXPECT_TRUE(holds(tiers, 0, 0, seed));
    torn += !holds(tiers, 0, 1, seed + 200);
  }
  EXPECT_GT(torn, 0);
}

}  // namespace
}  // namespace zinf::swap
