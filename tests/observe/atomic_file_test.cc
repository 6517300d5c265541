#include "engine/observe/atomic_file.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "engine/base/error.h"
#include "tests/observe/temp_folder.h"

namespace zinf::observe {
namespace {

TEST(AtomicFile, WritesWithModeAndLeavesNoTemporary) {
  TempFolder folder;
  for (const auto durability : {Durability::kSynced, Durability::kBuffered}) {
    write_file_atomically(folder / "a", "first", durability);
    write_file_atomically(folder / "a", "second, longer", durability);
    EXPECT_EQ(read_file(folder / "a"), "second, longer");
    EXPECT_EQ(mode_of(folder / "a"), 0600u);
    EXPECT_FALSE(std::filesystem::exists(folder / "a.tmp"));
  }
}

TEST(AtomicFile, EmptyTextAndLeftoverTemporary) {
  TempFolder folder;
  write_raw(folder / "a.tmp", "left by a killed run, longer than the new text");
  write_file_atomically(folder / "a", "", Durability::kSynced);
  EXPECT_EQ(read_file(folder / "a"), "");
}

TEST(AtomicFile, MissingFolderIsAnErrorWithThePath) {
  TempFolder folder;
  try {
    write_file_atomically(folder / "missing/a", "x", Durability::kSynced);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFailed);
    EXPECT_NE(std::string(error.what()).find("missing/a.tmp: No such file"), std::string::npos)
        << error.what();
  }
}

TEST(AtomicFile, TargetThatIsAFolderLeavesNoTemporary) {
  TempFolder folder;
  std::filesystem::create_directory(folder / "a");
  EXPECT_THROW(write_file_atomically(folder / "a", "x", Durability::kBuffered), Error);
  EXPECT_FALSE(std::filesystem::exists(folder / "a.tmp"));
}

TEST(AtomicFile, ReadRefusesWhatIsNotAFile) {
  TempFolder folder;
  EXPECT_THROW(read_file(folder / "missing"), Error);
  EXPECT_THROW(read_file(folder.path()), Error);
}

TEST(AtomicFile, AReaderSeesOldOrNewNeverHalf) {
  TempFolder folder;
  const std::string a(20000, 'a'), b(30000, 'b');
  write_file_atomically(folder / "f", a, Durability::kBuffered);
  std::atomic<bool> done{false};
  std::jthread writer([&] {
    for (int i = 0; i < 200; ++i)
      write_file_atomically(folder / "f", i % 2 ? a : b, Durability::kBuffered);
    done = true;
  });
  int reads = 0;
  while (!done || reads == 0) {
    const std::string seen = read_file(folder / "f");
    ASSERT_TRUE(seen == a || seen == b) << seen.size();
    ++reads;
  }
}

}  // namespace
}  // namespace zinf::observe
