#include "nvme/area_mark.h"

#include <gtest/gtest.h>

#include <fstream>

#include "nvme/store.h"
#include "tests/nvme/test_support.h"

namespace zinf::nvme {
namespace {

TEST(AreaMark, IsReadBackAndLeavesHeaderAndDataAlone) {
  TestDirectory directory;
  const std::string file = directory.path() + "/run.zinf-area";
  EXPECT_FALSE(read_area_mark(file));  // no such file
  StoreOptions options;
  options.drives = {{directory.path()}};
  options.area = "run";
  const auto open = [&](OpenMode mode) {
    Store store(options);
    store.allocate(kMiB);
    store.open(mode);
  };
  open(OpenMode::kCreate);
  EXPECT_FALSE(read_area_mark(file));
  write_area_mark(file, {{1, 2}, "/a/folder"});
  write_area_mark(file, {{3, 4}, std::string(10000, 'x')});
  const auto mark = read_area_mark(file);
  ASSERT_TRUE(mark);
  EXPECT_EQ(mark->owner, (AreaOwner{3, 4}));
  EXPECT_EQ(mark->note, std::string(4060, 'x'));  // what a block holds
  open(OpenMode::kReopen);
  EXPECT_TRUE(read_area_mark(file));
  std::fstream(file).seekp(4096 + 100) << 'y';
  EXPECT_FALSE(read_area_mark(file));  // its checksum
  write_area_mark(file, {{3, 4}, ""});
  open(OpenMode::kReplace);
  EXPECT_FALSE(read_area_mark(file));  // another area
  EXPECT_NE(error_of([&] { write_area_mark(file + "-none", {}); }).find("(ENOENT)"),
            std::string::npos);
}

}  // namespace
}  // namespace zinf::nvme
