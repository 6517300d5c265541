// Copies of areas: what was asked for is there, under the same layout; what was not takes no space;
// a copy that gives up leaves nothing.
#include "nvme/area_copy.h"

#include <sys/stat.h>

#include "nvme/area_header.h"
#include "tests/nvme/mounts.h"
#include "tests/nvme/test_support.h"

namespace zinf::nvme {
namespace {

constexpr Bytes kExtent = 3 * kMiB + 4096;

StoreOptions options_for(const std::vector<const TestDirectory*>& drives, const std::string& area) {
  StoreOptions options;
  for (const TestDirectory* drive : drives) {
    options.drives.emplace_back();
    options.drives.back().path = drive->path();
  }
  options.area = area;
  return options;
}

class AreaCopy : public ::testing::Test {
 protected:
  AreaCopy() { store_ = make("live", OpenMode::kCreate); }

  std::unique_ptr<Store> make(const std::string& area, OpenMode mode) {
    auto store = std::make_unique<Store>(options_for({&one_, &two_}, area));
    for (int i = 0; i < 4; ++i) store->allocate(kExtent);
    store->open(mode);
    return store;
  }
  std::string path(std::size_t drive, const std::string& area) {
    return (drive == 0 ? one_ : two_).path() + "/" + area + ".zinf-area";
  }
  AreaCopyRequest request(std::size_t drive, const std::vector<ExtentId>& extents) {
    AreaCopyRequest request{path(drive, "live"), path(drive, "copy"), {}, true};
    request.ranges.push_back({drive, 0, kAreaDataStart});
    for (const ExtentId extent : extents) {
      for (const FileRange& range : store_->file_ranges(extent)) {
        if (range.drive == drive) request.ranges.push_back(range);
      }
    }
    return request;
  }

  TestDirectory one_, two_;
  std::unique_ptr<Store> store_;
};

TEST_F(AreaCopy, RangesCoverEachExtentOnce) {
  for (ExtentId extent = 0; extent < 4; ++extent) {
    Bytes sum = 0;
    for (const FileRange& range : store_->file_ranges(extent)) sum += range.bytes;
    EXPECT_EQ(sum, kExtent);
  }
}

TEST_F(AreaCopy, HoldsWhatWasAskedForAndNoMore) {
  std::vector<Memory> written;
  for (ExtentId extent = 0; extent < 4; ++extent) {
    written.emplace_back(kExtent);
    written.back().fill(extent + 1);
    wait_for([&](IoCallback done) {
      store_->write(extent, 0, written.back().data(), kExtent, std::move(done));
    }).throw_if_failed();
  }
  store_->sync();
  for (const bool clone : {true, false}) {
    for (std::size_t drive = 0; drive < 2; ++drive) {
      AreaCopyRequest wanted = request(drive, {0, 2});
      wanted.clone = clone;
      const AreaCopyResult result = copy_area(wanted, [](Bytes) { return true; });
      Bytes sum = 0;
      for (const FileRange& range : wanted.ranges) sum += range.bytes;
      EXPECT_EQ(result.bytes, sum);
      struct stat live {
      }, copy{};
      ASSERT_EQ(::stat(wanted.from.c_str(), &live), 0);
      ASSERT_EQ(::stat(wanted.to.c_str(), &copy), 0);
      EXPECT_EQ(copy.st_size, live.st_size);
      EXPECT_LT(static_cast<Bytes>(copy.st_blocks) * 512, sum + kMiB) << "holes take no space";
    }
    // While the area is in use: the copy is another file.
    const std::unique_ptr<Store> copy = make("copy", OpenMode::kRead);
    for (const ExtentId extent : {0u, 2u}) {
      Memory read(kExtent);
      wait_for([&](IoCallback done) {
        copy->read(extent, 0, read.data(), kExtent, std::move(done));
      }).throw_if_failed();
      EXPECT_TRUE(read == written[extent]) << "extent " << extent;
    }
  }
}

// Where the file system shares blocks, a copy takes no space, and what is written to the live area
// afterwards does not reach it.
TEST(AreaCopyOnXfs, SharesBlocks) {
  TestDirectory images, directory;
  const std::string found = in_own_mounts([&]() -> std::string {
    if (!mount_image("mkfs.xfs -q -m reflink=1", 512 * kMiB, images.path() + "/image",
                     directory.path()))
      return "skip";
    constexpr Bytes kBytes = 32 * kMiB;
    const StoreOptions live = options_for({&directory}, "live");
    Store store(live);
    const ExtentId extent = store.allocate(kBytes);
    store.open(OpenMode::kCreate);
    Memory first(kBytes), second(kBytes), read(kBytes);
    first.fill(1);
    second.fill(2);
    const auto write = [&](Memory& memory) {
      wait_for([&](IoCallback done) {
        store.write(extent, 0, memory.data(), kBytes, std::move(done));
      }).throw_if_failed();
      store.sync();
    };
    write(first);
    AreaCopyRequest request{directory.path() + "/live.zinf-area",
                            directory.path() + "/copy.zinf-area",
                            {{0, 0, kAreaDataStart}},
                            true};
    for (const FileRange& range : store.file_ranges(extent)) request.ranges.push_back(range);
    const auto free_before = std::filesystem::space(directory.path()).free;
    const AreaCopyResult result = copy_area(request, [](Bytes) { return true; });
    const auto free_after = std::filesystem::space(directory.path()).free;
    if (!result.cloned) return "copied, not shared";
    if (result.bytes != kBytes + kAreaDataStart) return "not all of it";
    if (free_before > free_after + kBytes / 4) return "it takes space";
    write(second);
    Store copy(options_for({&directory}, "copy"));
    copy.allocate(kBytes);
    copy.open(OpenMode::kRead);
    wait_for([&](IoCallback done) {
      copy.read(extent, 0, read.data(), kBytes, std::move(done));
    }).throw_if_failed();
    return read == first ? "" : "other bytes";
  });
  if (found == "skip") GTEST_SKIP() << "no XFS on a loop device can be mounted here";
  EXPECT_EQ(found, "");
}

TEST_F(AreaCopy, AnAreaInUseCanBeReadButNotTaken) {
  EXPECT_NE(error_of([&] { make("live", OpenMode::kReopen); }).find("in use"), std::string::npos);
  const std::unique_ptr<Store> reader = make("live", OpenMode::kRead);
  Memory memory(4096);
  EXPECT_FALSE(wait_for([&](IoCallback done) {
                 reader->write(0, 0, memory.data(), 4096, std::move(done));
               }).ok());
}

TEST_F(AreaCopy, GivingUpLeavesNothing) {
  int calls = 0;
  AreaCopyRequest wanted = request(0, {0, 1, 2, 3});
  wanted.clone = false;
  const AreaCopyResult result = copy_area(wanted, [&](Bytes) { return ++calls < 2; });
  EXPECT_EQ(calls, 2);
  EXPECT_GT(result.bytes, 0u);
  struct stat info {};
  EXPECT_NE(::stat(wanted.to.c_str(), &info), 0);
}

TEST_F(AreaCopy, AMissingSourceIsNamed) {
  AreaCopyRequest wanted{path(0, "absent"), path(0, "copy"), {}, true};
  EXPECT_NE(error_of([&] { copy_area(wanted, [](Bytes) { return true; }); }).find("absent"),
            std::string::npos);
}

TEST_F(AreaCopy, RenamesAreSeen) {
  copy_area(request(0, {0}), [](Bytes) { return true; });
  rename_durably(path(0, "copy"), path(0, "kept"));
  struct stat info {};
  EXPECT_EQ(::stat(path(0, "kept").c_str(), &info), 0);
  EXPECT_NE(::stat(path(0, "copy").c_str(), &info), 0);
}

}  // namespace
}  // namespace zinf::nvme
