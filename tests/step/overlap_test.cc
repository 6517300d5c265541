// Really overlapped: from the executor's own log, reads, compute, updates and writes ran at the
// same time. What is counted is order, not speed: every lane is slowed down, so that ops that may
// overlap do.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "tests/step/random_case.h"
#include "tests/step/temp_folder.h"
#include "tests/step/watchdog.h"

namespace zinf {
namespace {

using plan::Lane;
using plan::Segment;
using testing::Case;
using testing::OutOfCore;
using testing::TempFolder;

class SlowCompute : public testing::FakeCompute {
 public:
  SlowCompute(const model::ModelSpec& spec, int slowness)
      : FakeCompute(spec), slowness_(slowness) {}
  void run(const model::StageCall& call) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(2 * slowness_));
    FakeCompute::run(call);
  }

 private:
  int slowness_;
};

struct Ran {
  plan::Op op;
  Segment segment;
  int number = 0;
  int nth = 0;  // how often this op has run before
  double start, end;
};

// slowness: of everything that is timed. The slower, the less the machine's scheduling matters.
std::vector<Ran> run_logged(const Case& c, const std::string& folder, int slowness = 1) {
  SlowCompute compute(c.spec(), slowness);
  const optim::Optimizer optimizer(c.drawn.format, {});
  testing::OutOfCoreOptions options;
  options.folder = folder;
  options.executor.keep_timings = true;
  options.executor.perturb = [slowness](const plan::Op& op, Segment) {
    if (op.kind == plan::OpKind::kUpdate)
      std::this_thread::sleep_for(std::chrono::milliseconds(2 * slowness));
  };
  options.read_bytes_per_second = options.write_bytes_per_second = 32e6 / slowness;
  options.copy_bytes_per_second = 32e6 / slowness;
  OutOfCore engine(c.input(), plan::compile(c.input()), compute, optimizer, options);
  store_initial(c, engine);
  engine.executor().take_timings();
  run_steps(c, engine);
  std::vector<Ran> log;
  std::map<std::pair<Segment, int>, int> count;
  std::vector<step::OpTiming> timings = engine.executor().take_timings();
  std::sort(timings.begin(), timings.end(),
            [](const auto& a, const auto& b) { return a.start < b.start; });
  for (const step::OpTiming& timing : timings) {
    log.push_back({engine.programs().program(timing.segment).ops[timing.op], timing.segment,
                   timing.op, count[{timing.segment, timing.op}]++, timing.start, timing.end});
  }
  return log;
}

// The largest number of different lanes of `lanes` that were busy at one moment.
std::size_t most_at_once(const std::vector<Ran>& log, const std::vector<Lane>& lanes) {
  std::size_t most = 0;
  for (const Ran& at : log) {
    std::map<Lane, bool> busy;
    for (const Ran& other : log) {
      const bool counts = std::find(lanes.begin(), lanes.end(), other.op.lane) != lanes.end();
      if (counts && other.start <= at.start && at.start < other.end) busy[other.op.lane] = true;
    }
    most = std::max(most, busy.size());
  }
  return most;
}

Case overlapped_case() {
  Case c = testing::plain_case(8);
  c.drawn.input.settings.prefetch = 2;
  c.drawn.input.settings.ring_slots = 8;
  c.drawn.input.settings.chunk_elements = model::kTile;
  c.drawn.input.settings.commit_each_step = true;
  return c;
}

TEST(Overlap, ReadsComputeUpdatesAndWritesRunAtTheSameTime) {
  const testing::Watchdog watchdog("overlap");
  const TempFolder folder;
  Case c = overlapped_case();
  const std::vector<Lane> four = {Lane::kRead, Lane::kCompute, Lane::kOptimizer, Lane::kWrite};
  std::vector<Ran> log;
  // A machine busy with other things may not run four threads within a moment's work, so the work
  // is made longer; an engine that waits where it need not never shows four lanes, however slow.
  std::size_t most = 0;
  for (int slowness = 1; slowness <= 32 && most < 4; slowness *= 2) {
    log = run_logged(c, folder.path(), slowness);
    most = most_at_once(log, four);
  }
  EXPECT_EQ(most, 4u);
  EXPECT_GE(most_at_once(log, {Lane::kRead, Lane::kCompute, Lane::kOptimizer, Lane::kWrite,
                               Lane::kH2D, Lane::kD2H}),
            4u);
  // And not once: a third of the forward's compute calls beside an update segment had reads,
  // updates or writes beside them.
  int calls = 0, accompanied = 0;
  for (const Ran& compute : log) {
    if (compute.segment != Segment::kUpdateForward || compute.op.lane != Lane::kCompute) continue;
    ++calls;
    accompanied += std::any_of(log.begin(), log.end(), [&](const Ran& other) {
      return (other.op.lane == Lane::kRead || other.op.lane == Lane::kWrite ||
              other.op.lane == Lane::kOptimizer) &&
             other.start < compute.end && compute.start < other.end;
    });
  }
  EXPECT_GT(calls, 0);
  EXPECT_GE(accompanied * 3, calls);
  // Segments overlap too: the backward of a step starts while the update before it still writes.
  double last_write = 0, first_backward = 1e300;
  for (const Ran& ran : log) {
    if (ran.nth != 0) continue;
    if (ran.segment == Segment::kUpdateForward && ran.op.lane == Lane::kWrite)
      last_write = std::max(last_write, ran.end);
  }
  for (const Ran& ran : log) {
    if (ran.nth == 1 && ran.segment == Segment::kBackward)
      first_backward = std::min(first_backward, ran.start);
  }
  EXPECT_LT(first_backward, last_write);
}

// The first compute op waits for the update of what it reads, so for at least one slow update; the
// first step has none to wait for, and a drain waits for all of them.
TEST(Overlap, WaitsForUpdatesAreExposed) {
  const testing::Watchdog watchdog("exposed");
  const TempFolder folder(testing::quick_parent());
  const Case c = testing::plain_case();
  testing::FakeCompute compute(c.spec());
  const optim::Optimizer optimizer(c.drawn.format, testing::hyper_for(c.drawn.format));
  constexpr double kSlow = 0.03;
  plan::ProgramSet programs = plan::compile(c.input());
  int updates = 0;  // a step
  for (const plan::Op& op : programs.program(Segment::kUpdateOnly).ops)
    updates += op.kind == plan::OpKind::kUpdate;
  testing::OutOfCoreOptions options;
  options.folder = folder.path();
  options.executor.perturb = [kSlow](const plan::Op& op, Segment) {
    if (op.kind == plan::OpKind::kUpdate)
      std::this_thread::sleep_for(std::chrono::duration<double>(kSlow));
  };
  OutOfCore engine(c.input(), std::move(programs), compute, optimizer, options);
  store_initial(c, engine);
  const auto exposed = [&] {
    return engine.executor().take_totals()[static_cast<int>(Lane::kOptimizer)].exposed_seconds;
  };
  const std::vector<data::StepBatch> batches = batches_of(c);
  engine.trainer().gradients(batches[0]);
  EXPECT_EQ(exposed(), 0);
  engine.trainer().update(testing::kLr);
  engine.trainer().gradients(batches[1]);
  EXPECT_GE(exposed(), kSlow);
  engine.trainer().update(testing::kLr);
  engine.trainer().drain();
  EXPECT_GE(exposed(), kSlow * updates);
}

TEST(Overlap, WithoutItOneOpRunsAtATime) {
  const testing::Watchdog watchdog("no overlap");
  const TempFolder folder;
  Case c = overlapped_case();
  c.steps = 2;
  c.drawn.input.settings.overlap = false;
  std::vector<Ran> log = run_logged(c, folder.path());
  std::map<Segment, double> end;
  int together = 0;
  for (const Ran& ran : log) {
    together += ran.start < end[ran.segment];
    end[ran.segment] = std::max(end[ran.segment], ran.end);
  }
  EXPECT_EQ(together, 0);
}

// Every edge and every link is kept by the clock: an op starts after what it waits for has ended.
TEST(Overlap, NoOpStartsBeforeWhatItWaitsFor) {
  const testing::Watchdog watchdog("edges");
  const TempFolder folder;
  const Case c = overlapped_case();
  const plan::ProgramSet programs = plan::compile(c.input());
  const std::vector<Ran> log = run_logged(c, folder.path());
  std::map<std::tuple<Segment, int, int>, const Ran*> ran;
  for (const Ran& one : log) ran[{one.segment, one.number, one.nth}] = &one;
  int checked = 0;
  for (const Ran& one : log) {
    for (const int before : programs.program(one.segment).ops[one.number].after) {
      ASSERT_GE(one.start, ran.at({one.segment, before, one.nth})->end);
      ++checked;
    }
  }
  EXPECT_GT(checked, 300);
  // Backward n comes after forward (n = 0) or update beside forward n - 1.
  for (const plan::Link& link : programs.links[static_cast<int>(Segment::kUpdateForward)]
                                              [static_cast<int>(Segment::kBackward)]) {
    ASSERT_GE(ran.at({Segment::kBackward, link.op, 1})->start,
              ran.at({Segment::kUpdateForward, link.previous_op, 0})->end);
  }
  for (const plan::Link& link : programs.links[static_cast<int>(Segment::kBackward)]
                                              [static_cast<int>(Segment::kUpdateForward)]) {
    ASSERT_GE(ran.at({Segment::kUpdateForward, link.op, 0})->start,
              ran.at({Segment::kBackward, link.previous_op, 0})->end);
  }
}

}  // namespace
}  // namespace zinf
