// Every page of a slot is read whole, whatever its size, and thus compared.
#include "engine/train/read_slot.h"

#include <gtest/gtest.h>

#include <cstring>

#include "engine/base/error.h"
#include "tests/step/temp_folder.h"

namespace zinf::train {
namespace {

TEST(ReadSlot, ComparesEveryPageOfEverySize) {
  const testing::TempFolder folder;
  constexpr Bytes kPage8Bit = 65 * kKiB;
  swap::TierOptions options;
  options.extents = {{40 * kPage8Bit, 2, false, kPage8Bit}, {kMiB, 2}, {4 * kKiB, 1}};
  options.host_arena = options.host_budget = 40 * kPage8Bit;
  nvme::StoreOptions store;
  store.drives.emplace_back();
  store.drives.back().path = folder.path();
  options.nvme = store;
  swap::Tiers tiers(options);
  Bytes all = 0;
  for (int extent = 0; extent < 3; ++extent) {
    std::memset(tiers.host_arena(), 'a' + extent, tiers.extent_bytes(extent));
    wait_for_io([&](nvme::IoCallback done) {
      tiers.write(extent, 1, 0, tiers.host_arena(), tiers.extent_bytes(extent), std::move(done));
    });
    all += tiers.extent_bytes(extent);
  }
  Bytes seen = 0;
  read_slot(tiers, 1, 3, [&](int extent, Bytes, const std::byte* memory, Bytes bytes) {
    for (Bytes i = 0; i < bytes; ++i)
      ASSERT_EQ(memory[i], static_cast<std::byte>('a' + extent)) << extent;
    seen += bytes;
  });
  EXPECT_EQ(seen, all);
  EXPECT_EQ(tiers.store()->page_counters().verified, 40u + 4 + 1);
  EXPECT_EQ(tiers.store()->page_counters().unknown, 0u);

  // A table that speaks of other bytes.
  std::string table = tiers.save_pages(1, 3);
  table.back() = static_cast<char>(table.back() ^ 1);
  tiers.load_pages(1, 3, table, "step 1");
  EXPECT_THROW(read_slot(tiers, 1, 3, [](int, Bytes, std::byte*, Bytes) {}), Error);
}

}  // namespace
}  // namespace zinf::train
