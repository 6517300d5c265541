#include "engine/observe/trace.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/observe/atomic_file.h"
#include "tests/observe/temp_folder.h"

namespace zinf::observe {
namespace {

using nlohmann::json;

TraceSpan span_at(double start, std::string_view lane = "nvme_read") {
  TraceSpan span;
  span.lane = lane;
  span.name = "read layer 3";
  span.start_seconds = start;
  span.seconds = 0.25;
  span.bytes = 500'000'000;
  span.predicted_seconds = 0.125;
  span.step = 7;
  return span;
}

std::vector<json> events_of(const json& trace, const std::string& phase) {
  std::vector<json> found;
  for (const json& event : trace) {
    if (event["ph"] == phase) found.push_back(event);
  }
  return found;
}

TEST(Trace, ASpanCarriesBytesPredictedAndMeasured) {
  TempFolder folder;
  TraceWriter trace(folder / "t.json");
  EXPECT_EQ(mode_of(folder / "t.json"), 0600u);
  trace.span(span_at(1000.5));
  trace.span(span_at(1000.75, "compute"));
  trace.counter("host bytes", 1001, 42);
  trace.close();
  const json parsed = json::parse(read_file(folder / "t.json"));
  const auto spans = events_of(parsed, "X");
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(
      spans[0],
      json::parse(R"({"name": "read layer 3", "cat": "nvme_read", "ph": "X", "pid": 1, "tid": 1,
    "ts": 0.0, "dur": 250000.0, "args": {"measured_seconds": 0.25, "predicted_seconds": 0.125, "bytes": 500000000,
    "gb_per_second": 2.0, "step": 7}})"));
  EXPECT_EQ(spans[1]["tid"], 2);
  EXPECT_EQ(spans[1]["ts"], 250000.0);
  const auto counters = events_of(parsed, "C");
  ASSERT_EQ(counters.size(), 1u);
  EXPECT_EQ(counters[0]["args"]["value"], 42);
  std::vector<std::string> names;
  for (const json& event : events_of(parsed, "M")) {
    if (event["name"] == "thread_name") names.push_back(event["args"]["name"]);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"nvme_read", "compute"}));
}

TEST(Trace, UnknownValuesAreLeftOut) {
  TempFolder folder;
  TraceWriter trace(folder / "t.json");
  TraceSpan span;
  span.lane = "step";
  span.name = "a \"quoted\" \\ name\n\xff";
  trace.span(span);
  trace.close();
  const auto spans = events_of(json::parse(read_file(folder / "t.json")), "X");
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0]["args"], json::parse(R"({"measured_seconds": 0.0})"));
  EXPECT_EQ(spans[0]["name"], "a \"quoted\" \\ name\n\xef\xbf\xbd");
}

TEST(Trace, CloseMakesStrictJsonEvenWithoutSpans) {
  TempFolder folder;
  { TraceWriter trace(folder / "t.json"); }
  EXPECT_TRUE(json::parse(read_file(folder / "t.json")).is_array());
}

TEST(Trace, LaterCallsAfterCloseDoNothing) {
  TempFolder folder;
  TraceWriter trace(folder / "t.json");
  trace.close();
  const std::string before = read_file(folder / "t.json");
  trace.span(span_at(1));
  trace.counter("c", 1, 1);
  trace.flush();
  trace.close();
  EXPECT_EQ(read_file(folder / "t.json"), before);
}

// What a killed run leaves: whole events, only the bracket is missing, which the viewers add in
// thought.
TEST(Trace, AKilledRunLeavesWholeEvents) {
  TempFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    TraceWriter trace(folder / "t.json");
    for (int i = 0; i < 2000; ++i) trace.span(span_at(i));
    ::_exit(0);  // no destructor, no close
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  const std::string text = read_file(folder / "t.json");
  EXPECT_FALSE(json::accept(text));
  const json parsed = json::parse(text + "\n]");
  EXPECT_GT(events_of(parsed, "X").size(), 1000u);
  EXPECT_LT(events_of(parsed, "X").size(), 2000u);  // the rest was in the buffer
}

TEST(Trace, StopsAtItsLimitAndStaysStrict) {
  TempFolder folder;
  TraceWriter trace(folder / "t.json", 100 * kKiB);
  for (int i = 0; i < 5000; ++i) trace.span(span_at(i));
  trace.close();
  const std::string text = read_file(folder / "t.json");
  EXPECT_GT(text.size(), 99 * kKiB);
  EXPECT_LT(text.size(), 102 * kKiB);
  const json parsed = json::parse(text);
  EXPECT_EQ(parsed.back()["name"], "trace_full");
}

TEST(Trace, ThreadsMayWriteAtOnce) {
  TempFolder folder;
  TraceWriter trace(folder / "t.json");
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&trace, t] {
        const std::string lane = "lane " + std::to_string(t);
        for (int i = 0; i < 500; ++i) trace.span(span_at(i, lane));
      });
    }
  }
  trace.close();
  const json parsed = json::parse(read_file(folder / "t.json"));
  EXPECT_EQ(events_of(parsed, "X").size(), 2000u);
}

TEST(Trace, AFolderThatIsMissingIsAnError) {
  TempFolder folder;
  EXPECT_THROW(TraceWriter(folder / "missing/t.json"), Error);
}

}  // namespace
}  // namespace zinf::observe
