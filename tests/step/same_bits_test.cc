// The engine's promise, on real lanes and files with the fake compute: whatever the placement,
// group, prefetch, chunk, ring, overlap, threads, I/O engine, depth, block size and timing, the
// state after some steps has the bits of the naive twin. Buffers are poisoned after their last use.
// No program hangs, however few blocks the drive's lane may have in flight, and none exceeds them.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>

#include "tests/step/engine_watch.h"
#include "tests/step/random_case.h"
#include "tests/step/temp_folder.h"
#include "tests/step/watchdog.h"

namespace zinf {
namespace {

using testing::Case;
using testing::Draw;
using testing::Outcome;
using testing::OutOfCoreOptions;
using testing::TempFolder;

int seeds() {
  const char* text = std::getenv("ZINF_TEST_SEEDS");
  return text != nullptr ? std::atoi(text) : 1000;
}

nvme::EngineKind draw_engine(Draw& draw) {
  const int choice = draw.below(8);
  if (choice == 0) return nvme::EngineKind::kThreads;
  if (choice == 1 && nvme::why_unavailable(nvme::EngineKind::kLibaio, 32).empty())
    return nvme::EngineKind::kLibaio;
  return nvme::EngineKind::kAuto;
}

struct Ran {
  std::string describes;  // the seed's program
  std::string failure;    // empty, or what differs
  bool full = false;      // all of the lane's depth was in flight at some moment
};

Ran compare_seed(int seed, const std::string& folder) {
  Draw draw(static_cast<std::uint64_t>(seed));
  const Case c = testing::draw_case(draw);
  Ran ran;
  ran.describes = str(optim::name(c.drawn.format.algorithm), " ",
                      optim::name(c.drawn.format.moments), " ", describe(c.input()));
  OutOfCoreOptions options;
  options.folder = folder;
  const bool sleepy = draw.below(4) == 0;
  const auto key = static_cast<std::uint64_t>(draw.below(1 << 30));
  std::atomic<std::uint64_t> calls{0};
  if (sleepy) {
    options.executor.perturb = [&](const plan::Op&, plan::Segment) {
      const std::uint64_t n = calls.fetch_add(1);
      if (random_below(key, n, 8) == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(random_below(key, n + 1, 200)));
    };
  }
  options.engine = draw_engine(draw);
  options.threads = 1 + draw.below(3);
  const int drain_after = draw.below(c.steps);
  options.depth = 1 + draw.below(8);
  options.block_size = Bytes{4096} << draw.below(9);
  testing::EngineWatch watch(options.depth);
  options.wrap_engine = watch.wrapper();
  const Outcome expected = run_twin(c);
  const Outcome found = run_out_of_core(c, options, drain_after);
  ran.full = watch.most_in_flight() == options.depth;
  if (!watch.problem().empty()) {
    ran.failure = str(watch.problem(), "; ", ran.describes);
  } else if (!(found == expected)) {
    ran.failure =
        str(found.numbers == expected.numbers ? "" : "loss, norm or clip factor differ; ",
            found.state == expected.state ? "" : "the state differs; ",
            found.weights == expected.weights ? "" : "the weights differ; ", ran.describes);
  }
  return ran;
}

TEST(SameBits, RandomProgramsEqualTheTwin) {
  // Most of a run is waiting for the drive, so some run at once; most of them in memory.
  constexpr int kWorkers = 4;
  std::mutex mutex;
  std::set<std::string> programs;
  std::vector<std::string> failures;
  int full = 0;
  std::atomic<int> next{0};
  const auto work = [&](int worker) {
    const TempFolder folder(worker == 0 ? "/var/tmp" : testing::quick_parent());
    for (int seed = next++; seed < seeds(); seed = next++) {
      const testing::Watchdog watchdog(str("seed ", seed));
      Ran ran;
      try {
        ran = compare_seed(seed, folder.path());
      } catch (const std::exception& error) {
        ran.failure = error.what();
      }
      const std::lock_guard lock(mutex);
      programs.insert(ran.describes);
      full += ran.full;
      if (!ran.failure.empty()) failures.push_back(str("seed ", seed, ": ", ran.failure));
      if (failures.size() >= 3) return;
    }
  };
  std::vector<std::thread> workers;
  for (int worker = 0; worker < kWorkers; ++worker) workers.emplace_back(work, worker);
  for (std::thread& worker : workers) worker.join();
  for (const std::string& failure : failures) ADD_FAILURE() << failure;
  // The programs really differ.
  EXPECT_GT(static_cast<int>(programs.size()), seeds() * 9 / 10);
  // And many of them want more of the drive than its lane allows.
  EXPECT_GT(full, seeds() / 4);
}

}  // namespace
}  // namespace zinf
