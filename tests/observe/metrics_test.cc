#include "engine/observe/metrics.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/observe/atomic_file.h"
#include "tests/observe/temp_folder.h"

namespace zinf::observe {
namespace {

StepRecord sample(std::uint64_t step) {
  StepRecord record;
  record.step = step;
  record.loss = 3.25;
  record.lr = 2e-5;
  record.grad_norm = 0.5;
  record.clip_factor = 0.75;
  record.tokens = 1000;
  record.target_tokens = 990;
  record.padding = 0.125;
  record.seconds = 0.5;
  record.tokens_per_second = 2000;
  record.efficiency = 0.9375;
  record.bottleneck = "nvme_read";
  record.peak_bytes = {{"device", 10}, {"host", (Bytes{1} << 60) + 1}};
  record.lane_busy[Lane::kNvmeRead] = 0.875;
  record.stall_seconds[Lane::kNetwork] = 0.0625;
  record.nvme_read_bytes = 14;
  record.nvme_write_bytes = 12;
  return record;
}

void expect_equal(const StepRecord& a, const StepRecord& b) {
  EXPECT_EQ(metrics_line(a), metrics_line(b));
}

std::string lines(std::uint64_t first, std::uint64_t last) {
  std::string text;
  for (auto step = first; step <= last; ++step) text += metrics_line(sample(step)) + "\n";
  return text;
}

TEST(Metrics, ALineHasExactlyTheContractsFieldsInOrder) {
  EXPECT_EQ(
      metrics_line(sample(7)),
      R"({"step":7,"loss":3.25,"lr":2e-05,"grad_norm":0.5,"clip_factor":0.75,"tokens":1000,)"
      R"("target_tokens":990,"padding":0.125,"seconds":0.5,"tokens_per_second":2000.0,)"
      R"("efficiency":0.9375,"bottleneck":"nvme_read","redo":false,)"
      R"("peak_bytes":{"device":10,"host":1152921504606846977},)"
      R"("lane_busy":{"compute":0.0,"h2d":0.0,"d2h":0.0,"nvme_read":0.875,"nvme_write":0.0,)"
      R"("optimizer":0.0,"network":0.0},)"
      R"("stall_seconds":{"compute":0.0,"h2d":0.0,"d2h":0.0,"nvme_read":0.0,"nvme_write":0.0,)"
      R"("optimizer":0.0,"network":0.0625},"nvme_read_bytes":14,"nvme_write_bytes":12})");
}

TEST(Metrics, ParsesBackWhatItWrote) {
  StepRecord record = sample(3);
  record.redo = true;
  record.eval_loss = 2.5;
  record.model_flops = 1e12;
  record.executed_flops = 1.25e12;
  record.loss_scale = 65536;
  record.overflow_skips = 3;
  const StepRecord back = parse_metrics_line(metrics_line(record));
  expect_equal(back, record);
  EXPECT_TRUE(back.redo);
  EXPECT_EQ(back.eval_loss, 2.5);
  EXPECT_EQ(back.executed_flops, 1.25e12);
  EXPECT_EQ(back.loss_scale, 65536);
  EXPECT_EQ(back.overflow_skips, 3);
  EXPECT_FALSE(parse_metrics_line(metrics_line(sample(3))).overflow_skips);
  EXPECT_EQ(back.peak_bytes.at("host"), (Bytes{1} << 60) + 1);
  EXPECT_EQ(back.lane_busy[Lane::kNvmeRead], 0.875);
}

TEST(Metrics, NonFiniteNumbersAreNullAndComeBackUnknown) {
  StepRecord record = sample(1);
  record.loss = std::numeric_limits<double>::quiet_NaN();
  record.grad_norm = std::numeric_limits<double>::infinity();
  const std::string line = metrics_line(record);
  EXPECT_NE(line.find(R"("loss":null,)"), std::string::npos) << line;
  EXPECT_NE(line.find(R"("grad_norm":null,)"), std::string::npos) << line;
  EXPECT_TRUE(std::isnan(parse_metrics_line(line).loss));
}

TEST(Metrics, DoublesKeepTheirBits) {
  StepRecord record = sample(1);
  record.loss = 0.1 + 0.2;
  EXPECT_EQ(parse_metrics_line(metrics_line(record)).loss, 0.1 + 0.2);
}

TEST(Metrics, AppendsWholeLinesAtOnceWithMode0600) {
  TempFolder folder;
  MetricsWriter writer(folder / "m", 0);
  EXPECT_EQ(mode_of(folder / "m"), 0600u);
  writer.append(sample(1));
  EXPECT_EQ(read_file(folder / "m"), lines(1, 1));  // visible before the writer is gone
  writer.append(sample(2));
  sync_metrics(folder / "m");
  EXPECT_EQ(read_file(folder / "m"), lines(1, 2));
  EXPECT_EQ(read_metrics(folder / "m").size(), 2u);
}

TEST(Metrics, ReopenKeepsStepsUpToTheResumedOne) {
  TempFolder folder;
  write_raw(folder / "m", lines(1, 9));
  {
    MetricsWriter writer(folder / "m", 6);
    EXPECT_EQ(writer.dropped_lines(), 3u);
    writer.append(sample(7));
  }
  EXPECT_EQ(read_file(folder / "m"), lines(1, 7));
}

TEST(Metrics, ReopenCutsATornLastLineWhereverItWasTorn) {
  const std::string whole = lines(1, 2);
  const std::string third = metrics_line(sample(3));
  for (std::size_t cut = 0; cut <= third.size(); ++cut) {
    TempFolder folder;
    write_raw(folder / "m", whole + third.substr(0, cut));
    MetricsWriter writer(folder / "m", 10);
    ASSERT_EQ(writer.dropped_lines(), cut == 0 ? 0u : 1u);
    writer.append(sample(3));
    ASSERT_EQ(read_file(folder / "m"), lines(1, 3)) << cut;
  }
}

TEST(Metrics, ReopenWithNothingToDropLeavesTheFileAsItIs) {
  TempFolder folder;
  write_raw(folder / "m", lines(1, 4));
  MetricsWriter writer(folder / "m", 4);
  EXPECT_EQ(writer.dropped_lines(), 0u);
  EXPECT_EQ(read_file(folder / "m"), lines(1, 4));
}

TEST(Metrics, FreshRunEmptiesTheFile) {
  TempFolder folder;
  write_raw(folder / "m", lines(1, 4));
  MetricsWriter writer(folder / "m", 0);
  EXPECT_EQ(writer.dropped_lines(), 4u);
  EXPECT_EQ(read_file(folder / "m"), "");
}

TEST(Metrics, ReopenDropsDamageDuplicatesAndForeignLinesInTheMiddle) {
  TempFolder folder;
  write_raw(folder / "m",
            lines(1, 2) + "note\n" + lines(2, 3) + "{\"step\":4,\"lo\n\n" + lines(5, 5));
  MetricsWriter writer(folder / "m", 10);
  EXPECT_EQ(writer.dropped_lines(), 4u);
  EXPECT_EQ(read_file(folder / "m"), lines(1, 3) + lines(5, 5));
  EXPECT_EQ(mode_of(folder / "m"), 0600u);
}

TEST(Metrics, ReadLeavesATornLineOutAndNamesADamagedOne) {
  TempFolder folder;
  write_raw(folder / "m", lines(1, 2) + "{\"step\":3");
  EXPECT_EQ(read_metrics(folder / "m").size(), 2u);
  write_raw(folder / "m", lines(1, 1) + "{\"step\":\"two\"}\n");
  try {
    read_metrics(folder / "m");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("/m:2: not a line of metrics.jsonl"),
              std::string::npos);
  }
}

TEST(Metrics, ALineThatIsAnotherKindOfJsonIsRefused) {
  for (const char* text : {"", "[]", "7", "null", "\"a\"", "{\"redo\":1}"}) {
    EXPECT_THROW(parse_metrics_line(text), Error) << text;
  }
}

// A full disk in the middle of a line: the error names the file, and the half line is taken back.
TEST(Metrics, AFullDiskLeavesWholeLines) {
  TempFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    MetricsWriter writer(folder / "m", 0);
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      for (std::uint64_t step = 1; step < 10; ++step) writer.append(sample(step));
    } catch (const Error& error) {
      ::_exit(std::string(error.what()).find(folder / "m: File too large") != std::string::npos
                  ? 7
                  : 8);
    }
    ::_exit(9);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_EQ(read_file(folder / "m"), lines(1, 1));
}

}  // namespace
}  // namespace zinf::observe
