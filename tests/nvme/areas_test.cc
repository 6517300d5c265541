#include "nvme/areas.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace zinf::nvme
