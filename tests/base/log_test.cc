#include "engine/base/log.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

namespace zinf::log {
namespace {

// The log is one per process and keeps its files: each test attaches its own and looks for its own
// texts.
class Log : public ::testing::Test {
 protected:
  Log() {
    std::string pattern = (std::filesystem::temp_directory_path() / "zinf-log-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    path_ = folder_ + "/log";
    attach_file(path_);
  }
  ~Log() override {
    set_level(Level::kInfo);
    std::filesystem::remove_all(folder_);
  }
  std::string text() const {
    std::ostringstream all;
    all << std::ifstream(path_).rdbuf();
    return all.str();
  }
  int count(const std::string& part) const {
    const std::string all = text();
    int found = 0;
    for (auto at = all.find(part); at != std::string::npos; at = all.find(part, at + 1)) ++found;
    return found;
  }
  std::string folder_, path_;
};

TEST_F(Log, ALineHasTimeLevelAndTextAndIsThereAtOnce) {
  info("first {} line");  // braces are text
  std::string shape = text();
  for (char& c : shape) {
    if (c >= '0' && c <= '9') c = '0';
    if (c == '-') c = '+';  // east or west of Greenwich
  }
  EXPECT_EQ(shape, "0000+00+00T00:00:00+00:00 info first {} line\n");
}

TEST_F(Log, TheFileIsForItsOwnerOnly) {
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777u, 0600u);
}

TEST_F(Log, LevelsFilter) {
  debug("hidden-debug");
  set_level(Level::kDebug);
  debug("shown-debug");
  set_level(Level::kWarning);
  info("hidden-info");
  warning("shown-warning");
  set_level(Level::kError);
  warning("hidden-warning");
  error("shown-error");
  set_level(Level::kOff);
  error("hidden-error");
  set_level(Level::kInfo);
  info("flush");
  EXPECT_EQ(count("hidden-"), 0);
  EXPECT_EQ(count("shown-"), 3);
}

TEST_F(Log, OnceMeansOnce) {
  for (int i = 0; i < 3; ++i) {
    warning_once("warned about this");
    warning_once("warned about that");
    info_once("told this");
  }
  EXPECT_EQ(count("warning warned about this"), 1);
  EXPECT_EQ(count("warning warned about that"), 1);
  EXPECT_EQ(count("info told this"), 1);
}

TEST_F(Log, ThreadsWriteWholeLines) {
  ::testing::internal::CaptureStderr();  // 400 lines that nobody wants to see
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([] {
        for (int i = 0; i < 100; ++i) info("threaded line with some length to it.");
      });
    }
  }
  ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(count(" info threaded line with some length to it.\n"), 400);
}

}  // namespace
}  // namespace zinf::log
