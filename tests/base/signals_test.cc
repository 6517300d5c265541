// Every test runs in a child, which a signal may end.
#include "engine/base/signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

namespace zinf {
namespace {

struct Outcome {
  int exit_code = -1;  // -1: did not exit
  int killed_by = 0;   // 0: no signal
  std::string said;    // stderr
};

Outcome run_child(const std::function<int()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) return {};
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);  // a test that hangs ends
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
    ::_exit(body());
  }
  ::close(ends[1]);
  Outcome outcome;
  char block[512];
  for (ssize_t got; (got = ::read(ends[0], block, sizeof block)) > 0;) {
    outcome.said.append(block, static_cast<std::size_t>(got));
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome.killed_by = WTERMSIG(status);
  return outcome;
}

void wait_for_ever() {
  while (true) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

TEST(Signals, TheFirstOnlyAsks) {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    const Outcome outcome = run_child([signal] {
      install_stop_signals();
      if (stop_requested() != 0) return 1;
      ::raise(signal);
      return stop_requested() == signal ? 0 : 2;
    });
    EXPECT_EQ(outcome.exit_code, 0) << signal;
    EXPECT_EQ(outcome.said, "");
  }
}

TEST(Signals, TheSecondEndsAtOnceAndNamesTheLastCommit) {
  const Outcome outcome = run_child([] {
    install_stop_signals();
    set_last_words("the last commit is step 40");
    set_last_words("the last commit is step 41");
    ::raise(SIGINT);
    ::raise(SIGINT);
    return 0;
  });
  EXPECT_EQ(outcome.exit_code, 128 + SIGINT);
  EXPECT_EQ(outcome.said,
            "zinf: stopped by SIGINT, the second signal: the last commit is step 41\n");
}

TEST(Signals, TheSecondMayBeAnotherOne) {
  const Outcome outcome = run_child([] {
    install_stop_signals();
    ::raise(SIGUSR1);
    ::raise(SIGTERM);
    return 0;
  });
  EXPECT_EQ(outcome.exit_code, 128 + SIGTERM);
  EXPECT_EQ(outcome.said, "zinf: stopped by SIGTERM, the second signal\n");
}

TEST(Signals, NotInstalledMeansNotCaught) {
  EXPECT_EQ(run_child([] {
              ::signal(SIGTERM, SIG_DFL);
              ::raise(SIGTERM);
              return 0;
            }).killed_by,
            SIGTERM);
}

TEST(Signals, RemoveRestoresAndForgets) {
  const Outcome outcome = run_child([] {
    ::signal(SIGTERM, SIG_DFL);
    install_stop_signals(60);
    ::raise(SIGTERM);
    remove_stop_signals();
    if (stop_requested() != 0) return 1;
    ::raise(SIGTERM);
    return 2;
  });
  EXPECT_EQ(outcome.killed_by, SIGTERM);
}

TEST(Signals, InstallingAgainForgetsAStop) {
  const Outcome outcome = run_child([] {
    install_stop_signals();
    ::raise(SIGINT);
    install_stop_signals(60);
    if (stop_requested() != 0) return 1;
    ::raise(SIGINT);
    return stop_requested() == SIGINT ? 0 : 2;
  });
  EXPECT_EQ(outcome.exit_code, 0);
}

TEST(Signals, TheGraceTimeEndsARunThatDoesNot) {
  const Outcome outcome = run_child([] {
    install_stop_signals(0.05);
    set_last_words("the last commit is step 7");
    ::raise(SIGUSR1);
    wait_for_ever();
    return 0;
  });
  EXPECT_EQ(outcome.exit_code, 128 + SIGUSR1);
  EXPECT_EQ(outcome.said,
            "zinf: stopped by SIGUSR1, the step did not end within the grace time: the last commit "
            "is step 7\n");
}

TEST(Signals, WithoutASignalTheGraceTimeNeverRuns) {
  const Outcome outcome = run_child([] {
    install_stop_signals(0.01);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    remove_stop_signals();
    return 5;
  });
  EXPECT_EQ(outcome.exit_code, 5);
}

TEST(Signals, ASignalInAnotherThreadCounts) {
  const Outcome outcome = run_child([] {
    install_stop_signals();
    std::thread([] { ::raise(SIGTERM); }).join();
    return stop_requested() == SIGTERM ? 0 : 1;
  });
  EXPECT_EQ(outcome.exit_code, 0);
}

TEST(Signals, LongLastWordsAreCut) {
  const Outcome outcome = run_child([] {
    install_stop_signals();
    set_last_words(std::string(1000, 'x'));
    ::raise(SIGINT);
    ::raise(SIGINT);
    return 0;
  });
  EXPECT_EQ(outcome.said,
            "zinf: stopped by SIGINT, the second signal: " + std::string(255, 'x') + "\n");
}

TEST(Signals, Names) {
  EXPECT_STREQ(signal_name(SIGINT), "SIGINT");
  EXPECT_STREQ(signal_name(SIGUSR1), "SIGUSR1");
  EXPECT_STREQ(signal_name(SIGKILL), "SIGKILL");
  EXPECT_STREQ(signal_name(12345), "another signal");
}

}  // namespace
}  // namespace zinf
