// An error of one lane while another is at work.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

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
using namespace std::chrono_literals;

void wait_for(const std::atomic<bool>& flag) {
  while (!flag) std::this_thread::sleep_for(1ms);
}

// Who is thrown the error lets go of the batch, which computing ops read.
TEST(ExecutorFailure, IsThrownOnceNothingIsInFlight) {
  const testing::Watchdog watchdog("failure");
  const TempFolder folder(testing::quick_parent());
  Case c = testing::plain_case(4);
  c.steps = 2;
  testing::FakeCompute compute(c.spec());
  const optim::Optimizer optimizer(c.drawn.format, testing::hyper_for(c.drawn.format));
  const plan::ProgramSet programs = plan::compile(c.input());
  int piece = -1;  // updated while the first stage computes
  bool computes = false;
  for (const plan::Op& op : programs.program(Segment::kUpdateForward).ops) {
    computes |= op.lane == Lane::kCompute;
    if (computes && piece < 0 && op.lane == Lane::kOptimizer) piece = op.piece;
  }
  std::atomic<bool> computing{false}, failed{false}, asked{false};
  testing::OutOfCoreOptions options;
  options.folder = folder.path();
  options.executor.perturb = [&](const plan::Op& op, Segment segment) {
    if (segment != Segment::kUpdateForward) return;
    if (op.lane == Lane::kOptimizer && op.piece == piece) {
      wait_for(computing);
      failed = true;
      throw Error(ErrorKind::kFailed, "the optimizer broke down");
    }
    if (op.lane != Lane::kCompute || failed) return;
    computing = true;
    wait_for(asked);
    std::this_thread::sleep_for(200ms);
    computing = false;
  };
  OutOfCore engine(c.input(), programs, compute, optimizer, options);
  store_initial(c, engine);
  const std::vector<data::StepBatch> batches = batches_of(c);
  engine.trainer().gradients(batches[0]);
  engine.trainer().update(testing::kLr);
  engine.trainer().forward(batches[1]);
  wait_for(failed);
  std::this_thread::sleep_for(20ms);  // then the executor knows; if it does not, this passes
  asked = true;
  EXPECT_THROW(engine.trainer().backward(), Error);
  EXPECT_FALSE(computing);
  EXPECT_FALSE(engine.executor().longest_active());
}

}  // namespace
}  // namespace zinf
