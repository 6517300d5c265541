// Kept checkpoints: whole or absent, and pruned only after the new one is whole.
#include "engine/checkpoint/kept.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "engine/base/error.h"
#include "nvme/area_header.h"
#include "tests/step/temp_folder.h"

namespace zinf::checkpoint {
namespace {

using testing::TempFolder;

class Kept : public ::testing::Test {
 protected:
  Kept() {
    manifest_.area = "run-0123456789ab";
    manifest_.drives = {drive_.path()};
    std::string bytes(nvme::kAreaDataStart + 64 * kKiB, 'x');
    std::ofstream(file(manifest_.area), std::ios::binary) << bytes;
  }
  std::string file(const std::string& area) const {
    return drive_.path() + "/" + area + ".zinf-area";
  }
  KeptCheckpoints::Made make(std::int64_t step, bool go_on = true) {
    manifest_.step = step;
    return kept_.make(manifest_, "pages", {{0, nvme::kAreaDataStart, 64 * kKiB}},
                      [go_on](Bytes) { return go_on; });
  }
  std::size_t files() const {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(drive_.path()))
      count += entry.is_regular_file();
    return count;
  }

  TempFolder drive_, run_;
  Manifest manifest_;
  KeptCheckpoints kept_{run_.path()};
};

TEST_F(Kept, ACopyHasItsOwnAreaAndManifest) {
  EXPECT_TRUE(make(3).whole);
  EXPECT_EQ(kept_.steps(), (std::vector<std::int64_t>{3}));
  const Manifest read = kept_.manifest(3);
  EXPECT_EQ(read.area, "run-0123456789ab-kept-3");
  EXPECT_EQ(kept_.manifests().pages(read), "pages");
  EXPECT_TRUE(std::filesystem::exists(file(read.area)));
}

TEST_F(Kept, GivingUpLeavesNothing) {
  EXPECT_FALSE(make(3, false).whole);
  EXPECT_TRUE(kept_.steps().empty());
  EXPECT_EQ(files(), 1u);
}

TEST_F(Kept, TheOldestGoAndSoDoThoseOfAFutureGivenUp) {
  for (const std::int64_t step : {2, 4, 6, 8}) make(step);
  EXPECT_EQ(kept_.prune({manifest_.area, manifest_.drives}, 6, 2),
            (std::vector<std::int64_t>{8, 2}));
  EXPECT_EQ(kept_.steps(), (std::vector<std::int64_t>{4, 6}));
  EXPECT_EQ(files(), 3u);
  kept_.clean({manifest_.area, manifest_.drives}, true);
  EXPECT_EQ(files(), 1u);
  EXPECT_TRUE(kept_.steps().empty());
}

TEST_F(Kept, WhatHasNoManifestIsRemoved) {
  make(2);
  std::filesystem::copy(file(manifest_.area), file("run-0123456789ab-kept-4-partial"));
  std::filesystem::copy(file(manifest_.area), file("run-0123456789ab-kept-5"));
  std::filesystem::copy(file(manifest_.area), file("run-ffffffffffff-kept-5"));
  kept_.clean({manifest_.area, manifest_.drives}, false);
  EXPECT_EQ(files(), 3u) << "the live area, step 2, and another run's";
}

TEST_F(Kept, AStepThatIsNotKeptIsAnsweredWithThoseThatAre) {
  make(2);
  make(4);
  try {
    kept_.manifest(3);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("kept are the steps 2, 4"), std::string::npos);
  }
}

}  // namespace
}  // namespace zinf::checkpoint
