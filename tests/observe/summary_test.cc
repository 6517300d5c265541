#include "engine/observe/summary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/observe/atomic_file.h"
#include "tests/observe/temp_folder.h"

namespace zinf::observe {
namespace {

using nlohmann::json;

Summary sample() {
  Summary s;
  s.steps = 20;
  s.final_loss = 2.3125;
  s.parameters = 134515008;
  s.weights_hash = "aa11";
  s.state_hash = "bb22";
  s.tokens_per_second = 512.5;
  s.step_seconds_measured = 4;
  s.step_seconds_predicted = 3.75;
  s.step_seconds_ideal = 3.5;
  s.efficiency = 0.875;
  s.bottleneck = "compute";
  s.predicted_bottleneck = "nvme_read";
  s.exposed_optimizer_seconds = 0.25;
  s.predicted_exposed_optimizer_seconds = 0.125;
  s.device = {
      400 * kMiB, 384 * kMiB, 512 * kMiB, {{"workspace", 256 * kMiB}, {"weights", 144 * kMiB}}};
  s.host = {kGiB, kGiB, 2 * kGiB, {}};
  s.pinned = {64 * kMiB, 64 * kMiB, 0, {}};
  s.process = {3 * kGiB, 2 * kGiB, 4 * kGiB, {}};
  s.lanes[Lane::kNvmeRead] = {0.9375, 0.96875, 14, 14, 0.75};
  s.written_bytes = {{"/drive/a", 1'614'180'096 * Bytes{20}}};
  s.endurance = {{"/drive/a", 600'000'000'000'000}};
  s.total_seconds = 80;
  s.tokens = 41000;
  s.speculated_steps = 18;
  s.redo_steps = 2;
  return s;
}

// The contract's example, key by key: what scripts read must be there, with its type.
TEST(Summary, HasEveryKeyOfTheContract) {
  const json contract = json::parse(R"({"steps": 20, "final_loss": 2.31, "parameters": 134515008,
    "weights_hash": "", "state_hash": "", "tokens_per_second": 0.5,
    "step_seconds": {"measured": 0.5, "predicted": 0.5, "ideal": 0.5}, "efficiency": 0.5,
    "exposed_optimizer_seconds": 0.5,
    "peak_bytes": {"device": {"predicted": 0, "measured": 0, "budget": 0, "by_class": {}}, "host": {}, "nvme": {},
                   "process": {}},
    "lanes": {"nvme_read": {"busy_share": 0.5, "bytes_per_parameter_step": 0.5, "least_bytes_per_parameter_step": 0.5,
                            "profile_ratio": 0.5},
              "nvme_write": {}, "h2d": {}, "d2h": {}, "compute": {}, "optimizer": {}, "network": {}},
    "written_bytes": {}})");
  const json written = json::parse(summary_json(sample()));
  const json flat = contract.flatten();
  for (const auto& [pointer, value] : flat.items()) {
    const json::json_pointer at(pointer);
    ASSERT_TRUE(written.contains(at)) << pointer;
    if (value.is_null()) continue;  // an empty object
    EXPECT_STREQ(written.at(at).type_name(), value.type_name()) << pointer;
    EXPECT_EQ(written.at(at).is_number_float(), value.is_number_float()) << pointer;
  }
  EXPECT_EQ(written["written_bytes"]["/drive/a"], 1'614'180'096 * Bytes{20});
  EXPECT_EQ(written["peak_bytes"]["device"]["by_class"]["workspace"], 256 * kMiB);
}

TEST(Summary, ParsesBackWhatItWrote) {
  Summary s = sample();
  s.eval_loss = 2.5;
  s.stopped_by = "SIGTERM";
  const std::string text = summary_json(s);
  EXPECT_EQ(summary_json(parse_summary(text)), text);
  EXPECT_EQ(parse_summary(text).stopped_by, "SIGTERM");
}

TEST(Summary, UnknownIsNull) {
  const json written = json::parse(summary_json(Summary{}));
  EXPECT_TRUE(written["final_loss"].is_null());
  EXPECT_TRUE(written["step_seconds"]["predicted"].is_null());
  EXPECT_TRUE(written["lanes"]["h2d"]["profile_ratio"].is_null());
  EXPECT_TRUE(std::isnan(parse_summary(summary_json(Summary{})).final_loss));
}

TEST(Summary, WritesAtomicallyAndRefusesNonsense) {
  TempFolder folder;
  write_summary(sample(), folder / "summary.json");
  EXPECT_EQ(mode_of(folder / "summary.json"), 0600u);
  EXPECT_EQ(read_file(folder / "summary.json"), summary_json(sample()));
  for (const char* text : {"", "{", "{\"steps\": \"many\"}", "{\"written_bytes\": {\"a\": []}}"}) {
    EXPECT_THROW(parse_summary(text), Error) << text;
  }
}

TEST(Summary, TableShowsPredictedBesideMeasured) {
  EXPECT_EQ(summary_table(sample()),
            R"(Finished after 20 steps: 134,515,008 parameters, final loss 2.3125
41,000 tokens in 1m20s, 512 tok/s, efficiency 88 %, 18 steps with early updates, 2 steps redone
weights aa11
state   bb22

time                 predicted    measured       ideal
step                    3.75 s      4.00 s      3.50 s
exposed optimizer       125 ms      250 ms
bottleneck           nvme_read     compute

peak memory          predicted    measured      budget        used
device                 400 MiB     384 MiB     512 MiB        75 %
  weights              144 MiB
  workspace            256 MiB
host                  1.00 GiB    1.00 GiB    2.00 GiB        50 %
pinned                64.0 MiB    64.0 MiB           -           -
nvme                         -           -           -           -
process               3.00 GiB    2.00 GiB    4.00 GiB        50 %

lane busy            predicted    measured bytes/param       least  of profile
nvme_read                 97 %        94 %       14.00       14.00        75 %

written to drives
/drive/a: 30.1 GiB written, 1.50 GiB a step; 0.00538 % of its endurance of 600 TBW, which is 372k such steps
)");
}

TEST(Summary, TableOfAnInterruptedRunSaysSo) {
  Summary s;
  s.stopped_by = "SIGINT";
  s.tokens = 4;
  s.unit = "samples";
  const std::string table = summary_table(s);
  EXPECT_NE(table.find("\n4 samples in "), std::string::npos) << table;
  EXPECT_NE(table.find(" samples/s"), std::string::npos) << table;
  EXPECT_EQ(table.rfind("Stopped by SIGINT after 0 steps: 0 parameters, final loss nan\n", 0), 0u)
      << table;
}

}  // namespace
}  // namespace zinf::observe
