#include "engine/observe/report.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/base/error.h"
#include "engine/observe/atomic_file.h"
#include "engine/observe/metrics.h"
#include "tests/observe/temp_folder.h"

namespace zinf::observe {
namespace {

std::vector<StepRecord> records(std::uint64_t count) {
  std::vector<StepRecord> made;
  for (std::uint64_t step = 1; step <= count; ++step) {
    StepRecord record;
    record.step = step;
    record.loss = 3.0 / static_cast<double>(step);
    record.lr = 1e-4;
    record.seconds = 0.5;
    record.tokens = 100;
    record.lane_busy[Lane::kNvmeRead] = 0.9;
    made.push_back(record);
  }
  return made;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Report, HoldsChartsAndTablesAndFetchesNothing) {
  Summary summary;
  summary.device = {100, 50, 200, {}};
  summary.written_bytes = {{"/a<b>", 1000}};
  summary.state_hash = "cafe";
  const std::string html = report_html(records(10), summary, "my <run>");
  EXPECT_TRUE(has(html, "<title>my &lt;run&gt;</title>"));
  for (const char* part :
       {"<figcaption>Loss<", "<figcaption>Step time<", "<figcaption>Busy share of each lane<",
        "Predicted against measured", "<td>device</td><td>100 B</td><td>50 B</td><td>50 %</td>",
        "/a&lt;b&gt;", "cafe", "10 steps in 5s, 1.0k tokens"}) {
    EXPECT_TRUE(has(html, part)) << part;
  }
  for (const char* part : {"http", "<script", "<link", "src=", "@import", "url("}) {
    EXPECT_FALSE(has(html, part)) << part;
  }
}

TEST(Report, ChartsOnlyLanesThatWorked) {
  const std::string html = report_html(records(10), std::nullopt, "run");
  EXPECT_FALSE(has(html, "Stalls, by the lane"));
  EXPECT_FALSE(has(html, "Gradient norm"));  // unknown in these records
  EXPECT_FALSE(has(html, "nan"));
  EXPECT_FALSE(has(html, "Predicted against"));
}

TEST(Report, ALongRunStaysSmall) {
  EXPECT_LT(report_html(records(100'000), std::nullopt, "run").size(), 200'000u);
}

TEST(Report, WritesFromARunFolder) {
  TempFolder folder;
  std::string lines;
  for (const StepRecord& record : records(3)) lines += metrics_line(record) + "\n";
  write_raw(folder / "metrics.jsonl", lines + "{\"step\":4");
  const std::string path = write_report(folder.path());
  EXPECT_EQ(path, folder / "report.html");
  EXPECT_EQ(mode_of(path), 0600u);
  EXPECT_TRUE(has(read_file(path), "3 steps in"));
  write_summary(Summary{}, folder / "summary.json");
  EXPECT_TRUE(has(read_file(write_report(folder.path())), "Predicted against measured"));
}

TEST(Report, AFolderWithoutMetricsIsAnErrorWithAHint) {
  TempFolder folder;
  try {
    write_report(folder.path());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_TRUE(has(error.what(), "no metrics.jsonl in " + folder.path()));
    EXPECT_TRUE(has(error.what(), "hint: name a run folder"));
  }
}

TEST(Report, NoStepsYet) {
  EXPECT_TRUE(has(report_html({}, std::nullopt, "run"), "No steps yet."));
}

}  // namespace
}  // namespace zinf::observe
