// Manifests: what is written is read; what is torn, damaged, foreign or of another version is
// named.
#include "engine/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "tests/step/temp_folder.h"

namespace zinf::checkpoint {
namespace {

using testing::TempFolder;

Manifest sample(std::int64_t step) {
  Manifest m;
  m.step = m.version = step;
  m.steps = 10;
  m.data_start = 2;
  m.slot = 1;
  m.area = "run-0123456789ab";
  m.drives = {"/nvme"};
  m.extents = {{"layer0", "weight", 4096, 16384, 2}};
  m.resolved_config = "train: {steps: 10}\n";
  m.loss = 0.5;
  return m;
}

std::string why(const std::string& text) {
  try {
    parse_manifest(text, "m.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// With a checksum that holds.
std::string edited(const std::string& from, const std::string& to) {
  std::string body = manifest_text(sample(3));
  body.resize(body.size() - 34);
  const std::size_t at = body.find(from);
  EXPECT_NE(at, std::string::npos);
  body.replace(at, from.size(), to);
  Hasher hash;
  hash.update(body.data(), body.size());
  return body + "\n" + hash.hex() + "\n";
}

TEST(Manifest, IsReadAsItWasWritten) {
  const Manifest read = parse_manifest(manifest_text(sample(3)), "m.json");
  EXPECT_EQ(manifest_text(read), manifest_text(sample(3)));
  EXPECT_EQ(read.extents, sample(3).extents);
}

// Written by a zinf that knew no such key.
TEST(Manifest, DataBeginWithTheRunUnlessItSaysOtherwise) {
  EXPECT_EQ(parse_manifest(edited("\"data_start\": 2,", ""), "m.json").data_start, 0);
}

TEST(Manifest, EveryTruncationAndEveryFlippedByteIsNamed) {
  const std::string whole = manifest_text(sample(3));
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_NE(why(whole.substr(0, size)), "") << size;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 4);
    EXPECT_NE(why(flipped), "") << at;
  }
}

TEST(Manifest, AnotherVersionIsRefusedByNumber) {
  EXPECT_EQ(why(edited("\"format\": 1", "\"format\": 1")), "");
  for (const char* version : {"0", "2", "\"1\"", "null"}) {
    const std::string found = why(edited("\"format\": 1", std::string("\"format\": ") + version));
    EXPECT_NE(found.find(std::string("format version ") + version + ", this zinf reads 1"),
              std::string::npos)
        << found;
  }
}

TEST(Manifest, AForeignFileAndAMissingKeyAreNamed) {
  EXPECT_NE(why(edited("zinf-manifest", "other-file")).find("not a manifest"), std::string::npos);
  EXPECT_NE(why(edited("\"slot\"", "\"slat\"")).find("slot"), std::string::npos);
}

TEST(ManifestFolder, GivesTheNewestWholeOneAndKeepsTwo) {
  const TempFolder folder;
  const ManifestFolder manifests(folder.path());
  for (int step = 1; step <= 4; ++step) manifests.publish(sample(step), "pages");
  EXPECT_EQ(manifests.steps(), (std::vector<std::int64_t>{3, 4}));
  std::ofstream(manifests.path(4), std::ios::trunc) << "torn";
  const ManifestFolder::Found found = manifests.find();
  ASSERT_TRUE(found.newest);
  EXPECT_EQ(found.newest->step, 3);
  ASSERT_EQ(found.skipped.size(), 1u);
  EXPECT_NE(found.skipped[0].find("manifest-4.json"), std::string::npos);
  EXPECT_EQ(manifests.pages(*found.newest), "pages");
}

TEST(ManifestFolder, PassesOverAManifestWithoutItsPageTable) {
  for (const bool damaged : {false, true}) {
    const TempFolder folder;
    const ManifestFolder manifests(folder.path());
    manifests.publish(sample(3), "pages of 3");
    manifests.publish(sample(4), "pages of 4");
    const std::string area = sample(4).area;
    EXPECT_EQ(manifests.find(area).newest->step, 4);
    std::filesystem::remove(manifests.pages_path(4));
    if (damaged) std::ofstream(manifests.pages_path(4)) << "pages of 5";
    const ManifestFolder::Found found = manifests.find(area);
    ASSERT_TRUE(found.newest);
    EXPECT_EQ(found.newest->step, 3);
    EXPECT_EQ(found.without_pages, 4);
    ASSERT_EQ(found.skipped.size(), 1u);
    EXPECT_NE(found.skipped[0].find(damaged ? "pages-4.bin: damaged" : "pages-4.bin: missing"),
              std::string::npos)
        << found.skipped[0];
    EXPECT_EQ(manifests.find("").newest->step, 4);
    EXPECT_EQ(manifests.find("run-of-another").newest->step, 4);
    EXPECT_TRUE(manifests.find("").skipped.empty());
    std::ofstream(manifests.path(4), std::ios::trunc) << "torn";
    EXPECT_EQ(manifests.find(area).newest->step, 3);
    EXPECT_FALSE(manifests.find(area).without_pages);
  }
}

TEST(ManifestFolder, ThoseOfKeptCheckpointsAreApart) {
  const TempFolder folder;
  const ManifestFolder live(folder.path()), kept(folder.path(), "kept-");
  live.publish(sample(7));
  kept.publish(sample(2), "pages", 100);
  kept.publish(sample(4), "pages", 100);
  EXPECT_EQ(live.steps(), (std::vector<std::int64_t>{7}));
  EXPECT_EQ(kept.steps(), (std::vector<std::int64_t>{2, 4}));
  EXPECT_EQ(kept.read(2).step, 2);
  kept.remove(2);
  EXPECT_EQ(kept.steps(), (std::vector<std::int64_t>{4}));
  EXPECT_TRUE(live.any());
}

}  // namespace
}  // namespace zinf::checkpoint
