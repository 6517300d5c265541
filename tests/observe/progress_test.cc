#include "engine/observe/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace zinf::observe {
namespace {

StepRecord sample(std::uint64_t step) {
  StepRecord record;
  record.step = step;
  record.loss = 3.21009;
  record.lr = 2e-5;
  record.grad_norm = 0.914;
  record.seconds = 0.812;
  record.tokens_per_second = 1234;
  record.nvme_read_bytes = 795'760'000;
  record.nvme_write_bytes = 1'144'920'000;
  record.efficiency = 0.931;
  record.bottleneck = "nvme_read";
  return record;
}

struct Screen {
  std::string text;
  ProgressOptions options(std::uint64_t steps, std::uint64_t per_print, bool tty) {
    ProgressOptions made;
    made.steps = steps;
    made.steps_per_print = per_print;
    made.tty = tty;
    made.write = [this](std::string_view part) { text += part; };
    made.time_stamp = [] { return std::string("2026-11-30 08:50:00"); };
    return made;
  }
};

TEST(ProgressLine, HasEverything) {
  EXPECT_EQ(progress_line(sample(12), 500, 400),
            "step 12/500 | loss 3.2101 | lr 2.0e-5 | norm 0.91 | 812 ms | 1.2k tok/s | nvme r 0.98 "
            "w 1.41 GB/s | "
            "ETA 6m40s | eff 93 % (nvme_read)");
}

TEST(ProgressLine, LeavesOutWhatIsUnknown) {
  StepRecord record;
  record.step = 3;
  record.loss = 1;
  record.seconds = 2;
  record.tokens_per_second = 8;
  EXPECT_EQ(progress_line(record, 0, -1, "samples"),
            "step 3 | loss 1.0000 | 2.00 s | 8.0 samples/s");
}

TEST(ProgressLine, ShowsEvaluationAndNonFiniteLoss) {
  StepRecord record = sample(1);
  record.loss = std::numeric_limits<double>::infinity();
  record.grad_norm = std::numeric_limits<double>::infinity();
  record.eval_loss = 2.5;
  const std::string line = progress_line(record, 2, -1);
  EXPECT_EQ(line.substr(0, line.find(" | lr")), "step 1/2 | loss inf | eval loss 2.5000");
  EXPECT_NE(line.find("| norm inf |"), std::string::npos);
}

TEST(Progress, PlainLinesHaveTimeStampsAndNoEscapes) {
  Screen screen;
  Progress progress(screen.options(4, 1, false));
  progress.step(sample(1));
  progress.step(sample(2));
  EXPECT_EQ(screen.text.find('\x1b'), std::string::npos);
  EXPECT_EQ(screen.text.substr(0, 33), "2026-11-30 08:50:00 step 1/4 | lo");
  EXPECT_NE(screen.text.find("\n2026-11-30 08:50:00 step 2/4 | "), std::string::npos);
  EXPECT_EQ(screen.text.back(), '\n');
}

TEST(Progress, StepsPerPrintAndTheLastStep) {
  Screen screen;
  Progress progress(screen.options(25, 10, false));
  for (std::uint64_t step = 1; step <= 25; ++step) progress.step(sample(step));
  progress.finish();
  EXPECT_EQ(std::count(screen.text.begin(), screen.text.end(), '\n'), 3);
  for (const char* label : {"step 10/25", "step 20/25", "step 25/25"}) {
    EXPECT_NE(screen.text.find(label), std::string::npos) << label;
  }
}

TEST(Progress, FinishShowsAStepThatAnInterruptMadeTheLast) {
  Screen screen;
  Progress progress(screen.options(25, 10, false));
  for (std::uint64_t step = 1; step <= 13; ++step) progress.step(sample(step));
  progress.finish();
  progress.finish();
  EXPECT_EQ(std::count(screen.text.begin(), screen.text.end(), '\n'), 2);
  EXPECT_NE(screen.text.find("step 13/25"), std::string::npos);
}

TEST(Progress, TerminalRewritesOneLineBetweenPrints) {
  Screen screen;
  auto options = screen.options(20, 10, true);
  options.columns = 60;
  Progress progress(options);
  progress.step(sample(9));
  EXPECT_EQ(screen.text.substr(0, 4), "\r\x1b[K");
  EXPECT_EQ(screen.text.find('\n'), std::string::npos);
  EXPECT_EQ(screen.text.substr(4, 35), "[#########...........] step 9/20 | ");
  EXPECT_EQ(screen.text.size(), 4u + 59u);  // a line that wraps cannot be rewritten
  screen.text.clear();
  progress.step(sample(10));
  EXPECT_EQ(screen.text.substr(0, 14), "\r\x1b[Kstep 10/20");
  EXPECT_EQ(screen.text.back(), '\n');
}

TEST(Progress, ClearWipesOnlyWhatIsThere) {
  Screen screen;
  Progress progress(screen.options(20, 10, true));
  progress.clear();
  EXPECT_EQ(screen.text, "");
  progress.step(sample(1));
  screen.text.clear();
  progress.clear();
  progress.clear();
  EXPECT_EQ(screen.text, "\r\x1b[K");
}

TEST(Progress, ColourMarksALossThatIsNotFinite) {
  Screen screen;
  auto options = screen.options(2, 1, true);
  options.colour = true;
  StepRecord record = sample(1);
  record.loss = std::numeric_limits<double>::quiet_NaN();
  Progress progress(options);
  progress.step(record);
  EXPECT_NE(screen.text.find("\x1b[1mstep 1/2\x1b[0m | \x1b[31mloss nan\x1b[0m | lr"),
            std::string::npos)
      << screen.text;
}

TEST(Progress, QuietWritesNothing) {
  Screen screen;
  auto options = screen.options(2, 1, true);
  options.quiet = true;
  Progress progress(options);
  progress.step(sample(1));
  progress.step(sample(2));
  progress.finish();
  EXPECT_EQ(screen.text, "");
}

TEST(Progress, EtaIsTheMeanOfTheLast32StepsTimesWhatIsLeft) {
  Screen screen;
  Progress progress(screen.options(100, 1, false));
  EXPECT_EQ(progress.eta_seconds(), -1);
  StepRecord record = sample(1);
  record.seconds = 1000;
  progress.step(record);
  EXPECT_DOUBLE_EQ(progress.eta_seconds(), 99 * 1000.0);
  for (std::uint64_t step = 2; step <= 33; ++step) {
    record.step = step;
    record.seconds = 2;
    progress.step(record);
  }
  EXPECT_DOUBLE_EQ(progress.eta_seconds(), 67 * 2.0);
  record.step = 101;
  progress.step(record);
  EXPECT_DOUBLE_EQ(progress.eta_seconds(), 0);
}

TEST(Progress, OptionsForAPipeArePlain) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const ProgressOptions options = progress_options_for(ends[1]);
  EXPECT_FALSE(options.tty);
  EXPECT_FALSE(options.colour);
  options.write("x");
  char byte = 0;
  EXPECT_EQ(::read(ends[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(Progress, NoColorAndDumbTerminals) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0) GTEST_SKIP() << "no pseudo-terminals here";
  ASSERT_EQ(::grantpt(terminal), 0);
  ASSERT_EQ(::unlockpt(terminal), 0);
  const int fd = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY);
  ASSERT_GE(fd, 0);
  ::setenv("TERM", "xterm", 1);
  ::unsetenv("NO_COLOR");
  EXPECT_TRUE(progress_options_for(fd).colour);
  ::setenv("NO_COLOR", "", 1);  // set but empty: does not count
  EXPECT_TRUE(progress_options_for(fd).colour);
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(progress_options_for(fd).colour);
  EXPECT_TRUE(progress_options_for(fd).tty);
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "dumb", 1);
  EXPECT_FALSE(progress_options_for(fd).tty);
  EXPECT_FALSE(progress_options_for(fd).colour);
  ::close(fd);
  ::close(terminal);
}

}  // namespace
}  // namespace zinf::observe
