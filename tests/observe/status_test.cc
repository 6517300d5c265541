#include "engine/observe/status.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/observe/atomic_file.h"
#include "tests/observe/temp_folder.h"

namespace zinf::observe {
namespace {

using nlohmann::json;

TEST(Status, HasEveryKey) {
  Status status;
  status.pid = 42;
  status.state = RunState::kTraining;
  status.step = 12;
  status.steps = 500;
  status.last_commit = 10;
  status.eta_seconds = 400;
  EXPECT_EQ(
      json::parse(status_json(status, "2026-11-30T08:50:00Z")),
      json::parse(R"({"pid": 42, "state": "training", "step": 12, "steps": 500, "last_commit": 10,
              "eta_seconds": 400.0, "exit_code": null, "message": "", "updated": "2026-11-30T08:50:00Z"})"));
}

TEST(Status, UnknownIsNullAndTheEndIsTold) {
  Status status;
  status.state = RunState::kInterrupted;
  status.exit_code = 143;
  status.message = "SIGTERM \xff";  // not UTF-8: replaced, never thrown about
  const json parsed = json::parse(status_json(status, ""));
  EXPECT_TRUE(parsed["last_commit"].is_null());
  EXPECT_TRUE(parsed["eta_seconds"].is_null());
  EXPECT_EQ(parsed["state"], "interrupted");
  EXPECT_EQ(parsed["exit_code"], 143);
}

TEST(Status, WritesAndReplaces) {
  TempFolder folder;
  Status status;
  EXPECT_TRUE(write_status(status, folder / "status.json"));
  status.step = 5;
  EXPECT_TRUE(write_status(status, folder / "status.json"));
  EXPECT_EQ(mode_of(folder / "status.json"), 0600u);
  const json parsed = json::parse(read_file(folder / "status.json"));
  EXPECT_EQ(parsed["step"], 5);
  std::string shape = parsed["updated"];
  for (char& c : shape) {
    if (c >= '0' && c <= '9') c = '0';
  }
  EXPECT_EQ(shape, "0000-00-00T00:00:00Z");
}

TEST(Status, AFolderThatIsGoneIsNoReasonToEnd) {
  TempFolder folder;
  EXPECT_FALSE(write_status(Status{}, folder / "missing/status.json"));
}

}  // namespace
}  // namespace zinf::observe
