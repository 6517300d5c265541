// A lane that hangs is named, with the op; one that works is left alone.
#include <gtest/gtest.h>

#include <future>

#include "engine/step/activity.h"
#include "tests/step/random_case.h"
#include "tests/step/temp_folder.h"
#include "tests/step/watchdog.h"

namespace zinf {
namespace {

using testing::Case;
using testing::OutOfCore;
using testing::TempFolder;

// The first op of `kind` waits until `on_stall` has been called.
std::string stalled_in(plan::OpKind kind) {
  const TempFolder folder(testing::quick_parent());
  Case c = testing::plain_case(2);
  c.steps = 2;
  testing::FakeCompute compute(c.spec());
  const optim::Optimizer optimizer(c.drawn.format, testing::hyper_for(c.drawn.format));
  std::promise<std::string> said;
  std::shared_future<std::string> text = said.get_future().share();
  testing::OutOfCoreOptions options;
  options.folder = folder.path();
  options.executor.perturb = [&](const plan::Op& op, plan::Segment) {
    if (op.kind == kind) text.wait();
  };
  OutOfCore engine(c.input(), plan::compile(c.input()), compute, optimizer, options);
  store_initial(c, engine);
  const StallWatch watch(
      0.05, [&] { return step::longest_activity(engine.executor(), c.spec()); },
      [&](const std::string& what) { said.set_value(what); });
  run_steps(c, engine);
  return text.get();
}

TEST(StallWatch, NamesTheLaneAndTheOp) {
  const testing::Watchdog watchdog("stalls");
  EXPECT_NE(stalled_in(plan::OpKind::kUpdate).find("the optimizer lane hangs: "),
            std::string::npos);
  EXPECT_NE(stalled_in(plan::OpKind::kCompute).find("the compute lane hangs: "), std::string::npos);
}

TEST(StallWatch, LeavesTheFirstWordToAnotherWatch) {
  const testing::Watchdog watchdog("two watches");
  constexpr double kPatience = 0.02;
  int asked = 0;
  std::promise<int> said;
  const StallWatch watch(
      kPatience,
      [&] {
        return Activity{"nvme_read", "", (++asked > 5 ? 2.5 : 1.5) * kPatience, 2};
      },
      [&](const std::string&) { said.set_value(asked); });
  EXPECT_EQ(said.get_future().get(), 6);
}

TEST(StallWatch, LeavesARunThatWorksAlone) {
  const testing::Watchdog watchdog("no stall");
  const TempFolder folder(testing::quick_parent());
  const Case c = testing::plain_case(2);
  testing::FakeCompute compute(c.spec());
  const optim::Optimizer optimizer(c.drawn.format, testing::hyper_for(c.drawn.format));
  testing::OutOfCoreOptions options;
  options.folder = folder.path();
  OutOfCore engine(c.input(), plan::compile(c.input()), compute, optimizer, options);
  store_initial(c, engine);
  const auto longest = [&] { return step::longest_activity(engine.executor(), c.spec()); };
  const StallWatch patient(3600, longest, [](const std::string& what) { FAIL() << what; });
  const StallWatch off(0, longest, [](const std::string& what) { FAIL() << what; });
  run_steps(c, engine);
  EXPECT_FALSE(engine.executor().longest_active());
}

}  // namespace
}  // namespace zinf
