#include "engine/base/child_process.h"

#include <csignal>

#include "engine/base/signals.h"
#include "tests/data/data_fixture.h"

namespace zinf::data {
namespace {

TEST(ChildProcess, PassesInputAndOutput) {
  std::string input(3 << 20, 'x');  // more than any pipe holds, both ways at once
  const ChildResult result =
      run_child({"sh", "-c", "cat; echo talk >&2; exit 7"}, {.input = input});
  EXPECT_EQ(result.output, input);
  EXPECT_EQ(result.talk, "talk\n");
  EXPECT_EQ(result.exit_code, 7);
}

TEST(ChildProcess, InputThatNobodyReads) {
  const ChildResult result =
      run_child({"sh", "-c", "exec 0<&-; echo done"}, {.input = std::string(3 << 20, 'x')});
  EXPECT_EQ(result.output, "done\n");
  EXPECT_EQ(result.exit_code, 0);
}

TEST(ChildProcess, SignalsAndMissingPrograms) {
  EXPECT_EQ(run_child({"sh", "-c", "kill -9 $$"}).exit_code, 137);
  EXPECT_EQ(error_of([] { run_child({"/no/such/program"}); }, ErrorKind::kFailed),
            "can't start /no/such/program: No such file or directory");
}

TEST(ChildProcess, IsToldToStopWithTheRun) {
  install_stop_signals();
  std::raise(SIGTERM);
  EXPECT_EQ(run_child({"sleep", "600"}).exit_code, 128 + SIGTERM);
  remove_stop_signals();
}

TEST(ChildProcess, IsEndedWhenItSaysNothing) {
  const ChildResult polite = run_child({"sleep", "600"}, {.patience = 0.1});
  EXPECT_GT(polite.silent_seconds, 0.1);
  EXPECT_EQ(polite.exit_code, 128 + SIGTERM);
  // Deaf to SIGTERM, and its own child keeps the outputs open.
  const ChildResult deaf = run_child({"sh", "-c", "trap '' TERM; sleep 30"}, {.patience = 0.1});
  EXPECT_GT(deaf.silent_seconds, 0.1);
  EXPECT_EQ(deaf.exit_code, 128 + SIGKILL);
}

// Longer than the patience in all, but never silent for so long.
TEST(ChildProcess, IsLeftAloneWhileItTalks) {
  const ChildResult result = run_child(
      {"sh", "-c", "for i in 1 2 3 4 5 6; do echo $i >&2; sleep 0.4; done"}, {.patience = 2});
  EXPECT_EQ(result.silent_seconds, 0);
  EXPECT_EQ(result.exit_code, 0);
}

TEST(ChildProcess, KeepsTheEndOfLongTalk) {
  const ChildResult result =
      run_child({"sh", "-c", "yes 123456789 | head -n 100000 >&2; echo last >&2"});
  EXPECT_EQ(result.talk.size(), std::size_t{64} * 1024);
  EXPECT_TRUE(result.talk.ends_with("last\n"));
}

}  // namespace
}  // namespace zinf::data
