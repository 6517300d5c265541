#include "engine/model/workspace_arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/random.h"

namespace zinf::model {
namespace {

struct alignas(256) Memory {
  std::byte bytes[64 << 10];
};

TEST(WorkspaceArena, TakesTheSmallestBlockThatFitsAndJoinsNeighbours) {
  auto memory = std::make_unique<Memory>();
  WorkspaceArena arena({memory->bytes, sizeof memory->bytes});
  std::byte* a = arena.allocate(1000);
  std::byte* b = arena.allocate(256);
  std::byte* c = arena.allocate(4000);
  std::byte* d = arena.allocate(1);
  EXPECT_EQ(b - a, 1024);
  EXPECT_EQ(arena.peak(), 1024u + 256 + 4096 + 256);
  arena.release(a);
  arena.release(c);
  EXPECT_EQ(arena.allocate(900), a);  // 1024 fits better than 4096
  arena.release(b);
  arena.release(a);
  EXPECT_EQ(arena.allocate(5000), a);  // a, b and c joined
  arena.release(a);
  arena.release(d);
  EXPECT_EQ(arena.used(), 0u);
  EXPECT_EQ(arena.allocate(64 << 10), a);  // everything is one block again
}

TEST(WorkspaceArena, ErrorTellsNeededFoundAndUsed) {
  auto memory = std::make_unique<Memory>();
  WorkspaceArena arena({memory->bytes, sizeof memory->bytes});
  arena.allocate(30 << 10);
  try {
    arena.allocate(35 << 10);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFailed);
    const std::string text = error.what();
    for (const char* part : {"35.0 KiB", "34.0 KiB", "64.0 KiB", "30.0 KiB"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
}

TEST(WorkspaceArena, AlignsWhateverTheStart) {
  auto memory = std::make_unique<Memory>();
  WorkspaceArena arena({memory->bytes + 3, sizeof memory->bytes - 3});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena.allocate(1)) % WorkspaceArena::kAlignment, 0u);
  EXPECT_EQ(arena.peak(), 253u + 256);
  WorkspaceArena tiny({memory->bytes + 3, 10});
  EXPECT_THROW(tiny.allocate(1), Error);
}

TEST(WorkspaceArena, AWorkspaceOfTheMeasuredPeakIsEnough) {
  auto memory = std::make_unique<Memory>();
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::vector<std::ptrdiff_t> places[2];
    Bytes size = sizeof memory->bytes;
    for (auto& placed : places) {
      WorkspaceArena arena({memory->bytes, size});
      std::vector<std::byte*> live;
      for (std::uint64_t i = 0; i < 60; ++i) {
        if (random_below(seed, 3 * i, 3) == 0 && !live.empty()) {
          const std::size_t at = random_below(seed, 3 * i + 1, live.size());
          arena.release(live[at]);
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
        } else {
          live.push_back(arena.allocate(1 + random_below(seed, 3 * i + 2, 1500)));
          placed.push_back(live.back() - memory->bytes);
        }
      }
      size = arena.peak();
    }
    ASSERT_EQ(places[0], places[1]) << seed;
  }
}

TEST(WorkspaceArena, RandomUseNeverOverlaps) {
  auto memory = std::make_unique<Memory>();
  WorkspaceArena arena({memory->bytes, sizeof memory->bytes});
  std::vector<std::pair<std::byte*, std::size_t>> live;
  for (std::uint64_t i = 0; i < 5000; ++i) {
    if (random_below(1, i, 2) == 0 && !live.empty()) {
      const std::size_t at = random_below(2, i, live.size());
      for (std::size_t j = 0; j < live[at].second; ++j)
        ASSERT_EQ(live[at].first[j], static_cast<std::byte>(live[at].second));
      arena.release(live[at].first);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
      continue;
    }
    const std::size_t size = 1 + random_below(3, i, 3000);
    try {
      std::byte* block = arena.allocate(size);
      std::memset(block, static_cast<int>(size & 0xFF), size);
      live.emplace_back(block, size);
    } catch (const Error&) {
    }
  }
  for (auto& [block, size] : live) arena.release(block);
  EXPECT_EQ(arena.used(), 0u);
}

}  // namespace
}  // namespace zinf::model
