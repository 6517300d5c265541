#include "nvme/areas.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "nvme/store.h"
#include "tests/nvme/test_support.h"

namespace zinf::nvme {
namespace {

TEST(Areas, AreListedWithSizeAndUseAndRemovedOnlyWhenFree) {
  TestDirectory directory;
  EXPECT_TRUE(list_areas(directory.path()).empty());
  EXPECT_TRUE(list_areas(directory.path() + "/none").empty());
  std::ofstream(directory.path() + "/notes.txt") << "mine";
  std::ofstream(directory.path() + "/zinf-bench-12.tmp") << "left";
  StoreOptions options;
  options.drives = {{directory.path()}};
  options.area = "run";
  {
    Store store(options);
    store.allocate(kMiB);
    store.open(OpenMode::kCreate);
    const auto areas = list_areas(directory.path());
    ASSERT_EQ(areas.size(), 2u);
    EXPECT_EQ(areas[0].path, directory.path() + "/run.zinf-area");
    EXPECT_GE(areas[0].bytes, 2 * kMiB);
    EXPECT_TRUE(areas[0].in_use);
    EXPECT_FALSE(areas[1].in_use);
    EXPECT_TRUE(areas[1].scratch && !areas[0].scratch && !areas[0].unknown);
    EXPECT_NE(error_of([&] { remove_area(areas[0].path); }).find("is in use by another process"),
              std::string::npos);
  }
  EXPECT_FALSE(list_areas(directory.path())[0].in_use);
  remove_area(directory.path() + "/run.zinf-area");
  remove_area(directory.path() + "/zinf-bench-12.tmp");
  EXPECT_TRUE(list_areas(directory.path()).empty());
  EXPECT_NE(error_of([&] { remove_area(directory.path() + "/notes.txt"); }).find("is no swap area"),
            std::string::npos);
  EXPECT_NE(error_of([&] { remove_area(directory.path() + "/run.zinf-area"); }).find("(ENOENT)"),
            std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(directory.path() + "/notes.txt"));
}

// What can't be opened may be in use: it is listed so, and stays.
TEST(Areas, AnotherUsersAreNotRemoved) {
  TestDirectory directory;
  const std::string area = directory.path() + "/run.zinf-area";
  std::ofstream(area) << "theirs";
  ASSERT_EQ(::chmod(directory.path().c_str(), 0777), 0);
  ASSERT_EQ(::chmod(area.c_str(), 0), 0);
  constexpr uid_t kNobody = 65534;
  const bool root = ::geteuid() == 0;  // who may open everything
  ASSERT_EQ(root ? ::seteuid(kNobody) : 0, 0);
  const auto areas = list_areas(directory.path());
  const std::string error = error_of([&] { remove_area(area); });
  ASSERT_EQ(root ? ::seteuid(0) : 0, 0);
  ASSERT_EQ(areas.size(), 1u);
  EXPECT_FALSE(areas[0].in_use);
  EXPECT_TRUE(areas[0].unknown);
  EXPECT_NE(error.find("can't be opened, so a run may be using it"), std::string::npos) << error;
  EXPECT_TRUE(std::filesystem::exists(area));
}

}  // namespace
}  // namespace zinf::nvme
