// Pages verified and hashed by the update, beside the naive way in which the I/O lanes do it: the
// same state, the same page tables, and a flipped bit is found before anything is committed.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include "tests/step/random_case.h"
#include "tests/step/temp_folder.h"
#include "tests/step/watchdog.h"

namespace zinf {
namespace {

using testing::Case;
using testing::OutOfCore;
using testing::OutOfCoreOptions;
using testing::TempFolder;

Case case_of(const optim::Format& format, std::int64_t layer_elements, std::int64_t chunk) {
  Case c = testing::plain_case(2, layer_elements);
  c.drawn.format = format;
  c.drawn.input.states = testing::layouts(format);
  c.drawn.input.settings.chunk_elements = chunk;
  c.drawn.input.settings.commit_each_step = true;
  return c;
}

struct PagesRun {
  testing::Outcome outcome;
  std::string tables[2];
  nvme::PageCounters loaded, done;
};

PagesRun run(const Case& c, const std::string& folder, bool in_update) {
  testing::FakeCompute compute(c.spec());
  const optim::Optimizer optimizer(c.drawn.format, testing::hyper_for(c.drawn.format));
  OutOfCoreOptions options;
  options.folder = folder;
  options.max_norm = c.max_norm;
  options.threads = 2;
  options.executor.verify_in_update = in_update;
  OutOfCore engine(c.input(), plan::compile(c.input()), compute, optimizer, options);
  store_initial(c, engine);
  PagesRun run;
  run.loaded = engine.tiers().store()->page_counters();
  run.outcome = run_steps(c, engine);
  run.done = engine.tiers().store()->page_counters();
  int states = 0;
  for (const plan::Extent& extent : engine.programs().extents)
    states += extent.kind == plan::ExtentKind::kState;
  for (int slot = 0; slot < 2; ++slot) run.tables[slot] = engine.tiers().save_pages(slot, states);
  return run;
}

TEST(UpdatePages, TablesAreThoseOfTheIoLanes) {
  const testing::Watchdog watchdog("page tables");
  const TempFolder folder(testing::quick_parent());
  const optim::Format split{.weight = optim::WeightDtype::kBf16,
                            .master = optim::MasterWeights::kSplit};
  optim::Format narrow = split, small = split;
  narrow.moments = optim::StateDtype::kBf16;
  small.moments = optim::StateDtype::kInt8;
  for (const optim::Format& format : {split, narrow, small}) {
    // Extents of less than a page, and of several.
    using Sizes = std::vector<std::pair<std::int64_t, std::int64_t>>;
    const bool eight_bit = format.moments == optim::StateDtype::kInt8;
    for (const auto& [elements, chunk] :
         eight_bit ? Sizes{{9000, 1 << 18}, {600000, 1 << 18}}
                   : Sizes{{9000, 1 << 18}, {200000, 1 << 17}, {200000, 1 << 16}}) {
      const Case c = case_of(format, elements, chunk);
      const PagesRun naive = run(c, folder.path(), false), one_pass = run(c, folder.path(), true);
      const std::string what = str(name(format.moments), ", chunks of ", chunk);
      EXPECT_EQ(naive.outcome, one_pass.outcome) << what;
      EXPECT_EQ(naive.tables[0], one_pass.tables[0]) << what;
      EXPECT_EQ(naive.tables[1], one_pass.tables[1]) << what;
      EXPECT_EQ(naive.done.hashed, one_pass.done.hashed) << what;
      EXPECT_EQ(naive.done.verified, one_pass.done.verified) << what;
      // Chunks end with pages in every state, so no page is read or written in part.
      EXPECT_EQ(0u, naive.done.unknown) << what;
      EXPECT_EQ(0u, one_pass.done.unknown) << what;
      // They differ in who has done it: all that training writes here, an update writes.
      EXPECT_EQ(0u, naive.done.by_caller) << what;
      EXPECT_GT(one_pass.done.by_caller, one_pass.done.hashed - one_pass.loaded.hashed) << what;
    }
  }
}

// Nothing is hashed for nothing: a state in memory has its checksums from the commits that write
// it.
TEST(UpdatePages, StatesInMemoryAreHashedByCommitsOnly) {
  const testing::Watchdog watchdog("states in memory");
  const TempFolder folder(testing::quick_parent());
  Case c = testing::plain_case(2, 200000);
  c.drawn.input.settings.chunk_elements = 1 << 16;
  c.drawn.input.placement.pieces.assign(c.spec().pieces.size(),
                                        {plan::Tier::kHost, plan::Tier::kNvme, plan::Tier::kHost});
  testing::FakeCompute compute(c.spec());
  const optim::Optimizer optimizer(c.drawn.format, testing::hyper_for(c.drawn.format));
  OutOfCoreOptions options;
  options.folder = folder.path();
  OutOfCore engine(c.input(), plan::compile(c.input()), compute, optimizer, options);
  store_initial(c, engine);
  run_steps(c, engine);
  const auto unknown_pages = [&](bool of_weights) {
    std::size_t unknown = 0;
    nvme::ExtentId id = static_cast<nvme::ExtentId>(engine.trainer().slot());
    for (const plan::Extent& extent : engine.programs().extents) {
      if (extent.kind != plan::ExtentKind::kState) break;
      if ((extent.state == 0) == of_weights) {
        for (const std::uint64_t sum : engine.tiers().store()->page_checksums(id))
          unknown += sum == 0;
      }
      id += static_cast<nvme::ExtentId>(extent.slots);
    }
    return unknown;
  };
  EXPECT_EQ(0u, unknown_pages(false));
  EXPECT_GT(unknown_pages(true), 5u);
  const std::uint64_t hashed = engine.tiers().store()->page_counters().hashed;
  engine.access().write_through(engine.trainer().slot(), false);
  EXPECT_EQ(0u, unknown_pages(true));
  EXPECT_GT(engine.tiers().store()->page_counters().hashed, hashed);
}

// In the byte at "FILE at offset N".
void flip_bit(const std::string& location) {
  const std::size_t at = location.find(" at offset ");
  const int file = ::open(location.substr(0, at).c_str(), O_RDWR);
  ASSERT_GE(file, 0) << location;
  const auto offset = static_cast<off_t>(std::stoull(location.substr(at + 11)));
  unsigned char byte = 0;
  ASSERT_EQ(1, ::pread(file, &byte, 1, offset));
  byte ^= 16;
  ASSERT_EQ(1, ::pwrite(file, &byte, 1, offset));
  ASSERT_EQ(0, ::fsync(file));
  ::close(file);
}

// After a step: a bit of the largest piece's state flips at this byte of its committed slot. The
// next step must name its page and commit nothing.
void expect_found(const Case& c, const std::string& folder, int state, Bytes at, bool in_update) {
  const auto batches = batches_of(c);
  testing::FakeCompute compute(c.spec());
  const optim::Optimizer optimizer(c.drawn.format, testing::hyper_for(c.drawn.format));
  OutOfCoreOptions options;
  options.folder = folder;
  options.executor.verify_in_update = in_update;
  int commits = 0;
  options.executor.commit = [&](std::int64_t, std::int64_t, int) { ++commits; };
  OutOfCore engine(c.input(), plan::compile(c.input()), compute, optimizer, options);
  store_initial(c, engine);
  engine.trainer().gradients(batches[0]);
  engine.trainer().update(testing::kLr);
  engine.trainer().drain();
  ASSERT_EQ(1, commits);
  nvme::ExtentId id = 0, damaged = 0;
  Bytes page_bytes = 0, most = 0;
  for (const plan::Extent& extent : engine.programs().extents) {
    if (extent.kind != plan::ExtentKind::kState) break;
    if (extent.state == state && extent.bytes >= most) {
      damaged = id + static_cast<nvme::ExtentId>(engine.trainer().slot());
      page_bytes = extent.page_bytes;
      most = extent.bytes;
    }
    id += static_cast<nvme::ExtentId>(extent.slots);
  }
  ASSERT_LT(at, most);
  const nvme::Store& store = *engine.tiers().store();
  flip_bit(store.location(damaged, at));
  std::string error;
  try {
    engine.trainer().gradients(batches[1]);
    engine.trainer().update(testing::kLr);
    engine.trainer().drain();
  } catch (const Error& failure) {
    error = failure.what();
  }
  const std::string what =
      str("state ", state, ", byte ", at, in_update ? ", in the update" : ", naive");
  const Bytes page = at / page_bytes;
  EXPECT_NE(error.find(str("page ", page, " of extent ", damaged, ", ", page_bytes / kKiB,
                           " KiB in ", store.location(damaged, page * page_bytes), ", is damaged")),
            std::string::npos)
      << what << ": " << error;
  EXPECT_EQ(1, commits) << what;
  // Which of the ways has found it.
  EXPECT_EQ(in_update, store.page_counters().by_caller > 0) << what;
}

// In every state: in the first page and on both sides of the border between two chunks.
TEST(UpdatePages, AFlippedBitIsFoundBeforeAnythingIsCommitted) {
  const testing::Watchdog watchdog("flipped bits");
  const TempFolder folder(testing::quick_parent());
  const optim::Format split{.weight = optim::WeightDtype::kBf16,
                            .master = optim::MasterWeights::kSplit};
  optim::Format small = split;
  small.moments = optim::StateDtype::kInt8;
  for (const Case& c : {case_of(split, 200000, 1 << 16), case_of(small, 600000, 1 << 18)}) {
    for (int state = 0; state < 4; ++state) {
      const Bytes border = c.drawn.input.states[static_cast<std::size_t>(state)].bytes(
          c.drawn.input.settings.chunk_elements);
      for (const Bytes at : {Bytes{1234}, border - 1, border}) {
        for (const bool in_update : {true, false})
          expect_found(c, folder.path(), state, at, in_update);
      }
    }
  }
}

}  // namespace
}  // namespace zinf
