#include "nvme/directory.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <fstream>

#include "nvme/store.h"
#include "tests/nvme/mounts.h"
#include "tests/nvme/sandbox.h"
#include "tests/nvme/test_support.h"

namespace zinf::nvme {
namespace {

// Field case 008: each unfit directory has its own message.

TEST(Directory, AGoodOneTellsItsFactsAndKeepsNothing) {
  TestDirectory directory;
  const DirectoryFacts facts = probe_directory(directory.path());
  EXPECT_GE(facts.alignment, 4096u);
  EXPECT_EQ(facts.alignment & (facts.alignment - 1), 0u);
  EXPECT_FALSE(facts.file_system.empty());
  EXPECT_EQ(facts.direct, facts.why_buffered.empty());
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(Directory, AMissingOneIsSaid) {
  TestDirectory directory;
  EXPECT_EQ(error_of([&] { probe_directory(directory.path() + "/none"); }),
            "swap directory " + directory.path() + "/none does not exist\n  hint: mkdir -p " +
                directory.path() + "/none, or correct memory.nvme[].path");
}

TEST(Directory, AFileInItsPlaceIsSaid) {
  TestDirectory directory;
  const std::string path = directory.path() + "/file";
  std::ofstream(path) << "x";
  EXPECT_NE(error_of([&] { probe_directory(path); }).find(path + " is a file, not a directory"),
            std::string::npos);
  EXPECT_NE(error_of([&] { probe_directory(path + "/below"); }).find("Not a directory (ENOTDIR)"),
            std::string::npos);
}

TEST(Directory, MissingPermissionIsSaid) {
  TestDirectory directory;
  ASSERT_EQ(::chmod(directory.path().c_str(), 0555), 0);
  EXPECT_NE(in_child([&] {
              become_nobody();
              return error_of([&] { probe_directory(directory.path()); });
            }).find("no permission to write to swap directory " + directory.path()),
            std::string::npos);
}

TEST(Directory, WithoutDirectIoBufferedIoIsUsedAndSaid) {
  TestDirectory directory;
  EXPECT_EQ(in_child([&]() -> std::string {
              refuse_direct_open();
              const DirectoryFacts facts = probe_directory(directory.path());
              if (facts.direct || facts.why_buffered != "Invalid argument (EINVAL)")
                return "direct";
              StoreOptions options;
              options.drives = {{directory.path()}};
              Store store(options);
              const ExtentId extent = store.allocate(kMiB);
              store.open(OpenMode::kCreate);
              Memory out(kMiB), in(kMiB);
              out.fill(8);
              wait_for([&](IoCallback done) {
                store.write(extent, 0, out.data(), kMiB, done);
              }).throw_if_failed();
              wait_for([&](IoCallback done) {
                store.read(extent, 0, in.data(), kMiB, done);
              }).throw_if_failed();
              return in == out && !store.counters()[0].direct ? "" : "other bytes";
            }),
            "");
}

TEST(Directory, AReadOnlyMountIsSaid) {
  TestDirectory directory;
  const std::string text = in_own_mounts([&] {
    if (::mount("none", directory.path().c_str(), "tmpfs", MS_RDONLY, "size=1m") != 0)
      return std::string("skip");
    return error_of([&] { probe_directory(directory.path()); });
  });
  if (text == "skip") GTEST_SKIP() << "mounting needs root";
  EXPECT_NE(text.find("swap directory " + directory.path() + " is mounted read-only"),
            std::string::npos)
      << text;
}

TEST(Directory, AFullFileSystemIsSaid) {
  TestDirectory directory;
  const std::string text = in_own_mounts([&] {
    if (::mount("none", directory.path().c_str(), "tmpfs", 0, "size=64k") != 0)
      return std::string("skip");
    std::ofstream(directory.path() + "/filler") << std::string(64 * kKiB, 'x');
    return error_of([&] { probe_directory(directory.path()); });
  });
  if (text == "skip") GTEST_SKIP() << "mounting needs root";
  EXPECT_NE(text.find("swap directory " + directory.path() +
                      " is full: No space left on device (ENOSPC), 0 bytes free"),
            std::string::npos)
      << text;
}

// /dev/shm of 64 MiB, as containers have it, and a real file system of 32 MiB on a loop device.
TEST(SmallFileSystem, IsRefusedBeforeAnythingIsCreated) {
  TestDirectory directory;
  const auto needs_too_much = [&] {
    StoreOptions options;
    options.drives = {{directory.path()}};
    Store store(options);
    store.allocate(80 * kMiB);
    const std::string text = error_of([&] { store.open(OpenMode::kCreate); });
    return text + (std::filesystem::exists(directory.path() + "/zinf.zinf-area")
                       ? " but it was created"
                       : "");
  };
  const std::string shared = in_own_mounts([&] {
    if (::mount("none", directory.path().c_str(), "tmpfs", 0, "size=64m") != 0)
      return std::string("skip");
    return needs_too_much();
  });
  if (shared == "skip") GTEST_SKIP() << "mounting needs root";
  EXPECT_EQ(shared, "not enough space in " + directory.path() +
                        ": needed 81.0 MiB (84934656 bytes), free 64.0 MiB (67108864 bytes)\n  "
                        "hint: free 17.0 MiB there, "
                        "or add a drive to memory.nvme");
  TestDirectory images;
  const std::string loop = in_own_mounts([&] {
    return mount_image("mkfs.ext4 -q", 32 * kMiB, images.path() + "/image", directory.path())
               ? needs_too_much()
               : std::string("skip");
  });
  if (loop == "skip") GTEST_SKIP() << "no loop devices here";
  EXPECT_NE(loop.find("needed 81.0 MiB (84934656 bytes), free "), std::string::npos) << loop;
  EXPECT_EQ(loop.find("but it was created"), std::string::npos) << loop;
}

}  // namespace
}  // namespace zinf::nvme
