#include "engine/observe/status.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
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

TEST(Status, ParsesBackWhatItWrote) {
  Status status;
  status.pid = 42;
  status.state = RunState::kFailed;
  status.step = 12;
  status.steps = 500;
  status.last_commit = 10;
  status.eta_seconds = 1.5;
  status.exit_code = 1;
  status.message = "no space";
  const std::string text = status_json(status, "2026-11-30T08:50:00Z");
  const StoredStatus read = parse_status(text);
  EXPECT_EQ(status_json(read.status, read.updated), text);
  const std::string unknown = status_json(Status{}, "");
  EXPECT_EQ(status_json(parse_status(unknown).status, ""), unknown);
  for (const char* wrong : {"", "{", "[]", "{}", R"({"state": "asleep", "pid": 1})"})
    EXPECT_THROW(parse_status(wrong), Error) << wrong;
}

// A folder where the new file would be stands for a disk without room for it.
TEST(Status, IsOverwrittenWhereThereIsNoRoomForASecondFile) {
  TempFolder folder;
  const std::string path = folder / "status.json";
  Status status;
  status.message = "something long enough to be longer than what comes after it";
  EXPECT_TRUE(write_status(status, path));
  std::filesystem::create_directory(path + ".tmp");
  for (const char* message :
       {"short", "something longer, again longer than the one before it, and more"}) {
    status.state = RunState::kFailed;
    status.exit_code = 1;
    status.message = message;
    EXPECT_TRUE(write_status(status, path));
    const StoredStatus read = parse_status(read_file(path));
    EXPECT_EQ(read.status.message, message);
    EXPECT_EQ(read.status.exit_code, 1);
    EXPECT_EQ(read_file(path).back(), '\n');
  }
  status.message = std::string(100000, 'x');
  EXPECT_TRUE(write_status(status, path));
  EXPECT_LT(read_file(path).size(), 1024u);
  std::filesystem::remove(path);
  EXPECT_FALSE(write_status(status, path));
}

TEST(Status, AFolderThatIsGoneIsNoReasonToEnd) {
  TempFolder folder;
  EXPECT_FALSE(write_status(Status{}, folder / "missing/status.json"));
}

}  // namespace
}  // namespace zinf::observe
