// Training through an I/O engine that misbehaves: what can be repaired gives the exact bytes, what
// cannot stops the run with an error that names the file; nothing hangs, and the engine can always
// be taken down.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "nvme/fault_engine.h"
#include "tests/step/random_case.h"
#include "tests/step/temp_folder.h"
#include "tests/step/watchdog.h"

namespace zinf {
namespace {

using nvme::FaultControl;
using nvme::FaultOptions;
using testing::Case;
using testing::Draw;
using testing::Outcome;
using testing::OutOfCore;
using testing::OutOfCoreOptions;
using testing::TempFolder;

struct FaultRun {
  std::optional<Outcome> outcome;
  std::string error;
  bool again_fails = false;  // a call after the error throws as well
};

FaultRun run_with_faults(const Case& c, const std::string& folder, FaultControl& faults,
                         double stall_seconds) {
  testing::FakeCompute compute(c.spec());
  const optim::Optimizer optimizer(c.drawn.format, testing::hyper_for(c.drawn.format));
  OutOfCoreOptions options;
  options.folder = folder;
  options.max_norm = c.max_norm;
  options.wrap_engine = faults.wrapper();
  options.stall_seconds = stall_seconds;
  FaultRun run;
  try {
    OutOfCore engine(c.input(), plan::compile(c.input()), compute, optimizer, options);
    try {
      store_initial(c, engine);
      run.outcome = run_steps(c, engine);
    } catch (const Error& error) {
      run.error = error.what();
      try {
        engine.trainer().skip();
      } catch (const Error&) {
        run.again_fails = true;
      }
    }
  } catch (const Error& error) {
    run.error = error.what();
  }
  return run;
}

Case small_case() {
  Case c = testing::plain_case(2);
  c.steps = 2;
  c.drawn.input.settings.commit_each_step = true;
  return c;
}

TEST(Faults, AnIoErrorSurfacesWithTheFileAndNothingHangs) {
  const TempFolder folder(testing::quick_parent());
  const Case c = small_case();
  const auto count = std::make_shared<FaultControl>(FaultOptions{});
  const testing::Watchdog watchdog("I/O errors");
  const FaultRun whole = run_with_faults(c, folder.path(), *count, 30);
  ASSERT_TRUE(whole.outcome) << whole.error;
  EXPECT_EQ(*whole.outcome, run_twin(c));
  // Loading the first weights is not training: it ends where the count of blocks says.
  Bytes loading = 0;
  for (const model::PieceSpec& piece : c.spec().pieces) loading += 1 + (piece.trainable ? 1 : 0);
  const std::uint64_t blocks = count->blocks();
  ASSERT_GT(blocks, loading + 20);
  int from_training = 0;
  for (std::uint64_t block = 1; block <= blocks; block += 7) {
    const auto faults = std::make_shared<FaultControl>(FaultOptions{.fail_block = block});
    const FaultRun run = run_with_faults(c, folder.path(), *faults, 30);
    ASSERT_FALSE(run.outcome) << "block " << block;
    EXPECT_NE(run.error.find(folder.path()), std::string::npos) << run.error;
    EXPECT_NE(run.error.find("Input/output error"), std::string::npos) << run.error;
    from_training += run.again_fails;
  }
  EXPECT_GT(from_training, 5);
}

TEST(Faults, AFullDriveIsNamed) {
  const TempFolder folder(testing::quick_parent());
  const Case c = small_case();
  const testing::Watchdog watchdog("ENOSPC");
  const auto faults =
      std::make_shared<FaultControl>(FaultOptions{.fail_block = 60, .error_number = ENOSPC});
  const FaultRun run = run_with_faults(c, folder.path(), *faults, 30);
  EXPECT_NE(run.error.find("No space left on device"), std::string::npos) << run.error;
}

TEST(Faults, ADriveThatNeverAnswersStopsTheRun) {
  const TempFolder folder(testing::quick_parent());
  const Case c = small_case();
  const testing::Watchdog watchdog("a silent drive");
  const auto faults = std::make_shared<FaultControl>(FaultOptions{.seed = 3, .drop_share = 0.05});
  const FaultRun run = run_with_faults(c, folder.path(), *faults, 0.3);
  EXPECT_FALSE(run.outcome);
  EXPECT_NE(run.error.find(folder.path()), std::string::npos) << run.error;
}

// Of each test: 1,000 in all.
int seeds() {
  const char* text = std::getenv("ZINF_TEST_SEEDS");
  return text != nullptr ? std::max(1, std::atoi(text) / 2) : 500;
}

// Runs every seed in a folder of its own and returns what was wrong with the first that failed;
// empty: nothing. Seeds mostly wait, so several go on at once.
std::string over_seeds(const char* what,
                       const std::function<std::string(int seed, const std::string& folder)>& run) {
  constexpr int kAtOnce = 8;
  std::atomic<int> next = 0;
  std::mutex mutex;
  std::string wrong;
  std::vector<std::thread> workers;
  for (int worker = 0; worker < kAtOnce; ++worker) {
    workers.emplace_back([&] {
      const TempFolder folder(testing::quick_parent());
      for (int seed; (seed = next++) < seeds();) {
        const testing::Watchdog watchdog(str(what, ", seed ", seed));
        const std::string problem = run(seed, folder.path());
        if (problem.empty()) continue;
        next = seeds();
        const std::lock_guard lock(mutex);
        if (wrong.empty()) wrong = str("seed ", seed, ": ", problem);
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  return wrong;
}

// Short transfers, EAGAIN and reordering cost nothing but time.
TEST(Faults, WhatCanBeRepairedGivesTheExactBytes) {
  std::atomic<std::uint64_t> injected = 0;
  const auto run_seed = [&](int seed, const std::string& folder) -> std::string {
    Draw draw(static_cast<std::uint64_t>(seed) + 5000);
    const Case c = testing::draw_case(draw);
    const auto faults =
        std::make_shared<FaultControl>(FaultOptions{.seed = static_cast<std::uint64_t>(seed),
                                                    .short_share = 0.1 * draw.below(3),
                                                    .again_share = 0.05 * draw.below(3),
                                                    .delay_share = 0.2 * draw.below(3)});
    const FaultRun run = run_with_faults(c, folder, *faults, 120);
    injected += faults->injected();
    if (!run.outcome) return run.error;
    return *run.outcome == run_twin(c) ? "" : "another outcome";
  };
  EXPECT_EQ(over_seeds("repaired faults", run_seed), "");
  EXPECT_GT(injected, static_cast<std::uint64_t>(seeds()));
}

// Errors, silence, lost writes and flipped bits: the exact bytes or an error that names the file.
// Pages are written and read whole here, as large chunks are, so that every page has its checksum.
TEST(Faults, WhatCannotBeRepairedStopsTheRun) {
  std::atomic<int> stopped = 0, whole = 0;
  const auto run_seed = [&](int seed, const std::string& folder) -> std::string {
    Draw draw(static_cast<std::uint64_t>(seed) + 7000);
    Case c = testing::draw_case(draw);
    c.drawn.input.settings.chunk_elements = 64 * model::kTile;
    c.drawn.input.settings.slice_rows = 0;
    FaultOptions options{.seed = static_cast<std::uint64_t>(seed), .delay_share = 0.1};
    switch (draw.below(4)) {
      case 0:
        options.error_share = 0.003;
        break;
      case 1:
        options.lose_share = 0.01;
        break;
      case 2:
        options.flip_share = 0.01;
        break;
      default:
        options.drop_share = seed % 4 == 0 ? 0.003 : 0;
    }
    const auto faults = std::make_shared<FaultControl>(options);
    const FaultRun run = run_with_faults(c, folder, *faults, options.drop_share > 0 ? 0.5 : 120);
    ++(run.outcome ? whole : stopped);
    if (run.outcome)
      return *run.outcome == run_twin(c) ? ""
                                         : str("another outcome, ", faults->injected(), " faults");
    return run.error.find(folder) != std::string::npos ? "" : run.error;
  };
  EXPECT_EQ(over_seeds("fatal faults", run_seed), "");
  if (seeds() < 20) return;
  EXPECT_GT(stopped, 0);
  EXPECT_GT(whole, 0);
}

}  // namespace
}  // namespace zinf
