#include "nvme/profile.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/nvme/test_support.h"

namespace zinf::nvme {
namespace {

NvmeProfile example() {
  NvmeProfile profile;
  profile.engine = EngineKind::kLibaio;
  profile.block_size = 512 * kKiB;
  profile.depth = 16;
  profile.read_gb_per_second = 4.125;
  profile.write_gb_per_second = 0.1;
  profile.mixed_gb_per_second = 1e-3;
  profile.device = "Model # 1: fast";
  profile.file_system = "ext4";
  profile.direct = true;
  return profile;
}

std::string without(const std::string& text, const std::string& key) {
  std::string out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(key + ":", 0) != 0) out += line + "\n";
  }
  return out;
}

constexpr const char* kKeys[] = {"version",
                                 "engine",
                                 "block_size",
                                 "depth",
                                 "read_gb_per_second",
                                 "write_gb_per_second",
                                 "mixed_gb_per_second",
                                 "device",
                                 "file_system",
                                 "direct"};

TEST(Profile, EveryKeyIsWrittenReadAndChangesTheResult) {
  const std::string text = profile_yaml(example());
  EXPECT_EQ(profile_yaml(parse_profile(text, "p")), text);
  int keys = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) keys += line[0] != '#';
  EXPECT_EQ(keys, static_cast<int>(std::size(kKeys)));
  const NvmeProfile other{1, EngineKind::kThreads, kMiB, 8, 1, 2, 3, "other", "xfs", false};
  for (const char* key : kKeys) {
    if (std::string(key) == "version") continue;  // only 1 is read
    // The example with one line of the other profile reads back as exactly that.
    std::string mixed;
    std::istringstream own(text), foreign(profile_yaml(other));
    for (std::string a, b; std::getline(own, a) && std::getline(foreign, b);) {
      mixed += (a.rfind(std::string(key) + ":", 0) == 0 ? b : a) + "\n";
    }
    EXPECT_NE(mixed, text) << key;
    EXPECT_EQ(profile_yaml(parse_profile(mixed, "p")), mixed) << key;
  }
}

TEST(Profile, MissingUnknownDoubleAndWrongKeysAreNamed) {
  const std::string text = profile_yaml(example());
  const auto error = [](const std::string& yaml) {
    return error_of([&] { parse_profile(yaml, "p"); });
  };
  for (const char* key : kKeys) {
    EXPECT_NE(error(without(text, key)).find(std::string("key ") + key + " is missing"),
              std::string::npos)
        << key;
  }
  EXPECT_NE(error(text + "threads: 3\n").find("p:12: unknown key threads"), std::string::npos)
      << error(text + "threads: 3\n");
  EXPECT_NE(error(text + "depth: 3\n").find("p:12: key depth again, first in line 5"),
            std::string::npos);
  EXPECT_NE(
      error(without(text, "depth") + "depth: many\n").find("depth: \"many\" is no valid value"),
      std::string::npos);
  EXPECT_NE(error(without(text, "depth") + "depth: 0\n").find("depth: 0 is not in 1 to 4096"),
            std::string::npos);
  EXPECT_NE(error(without(text, "depth") + "depth: -3\n").find("depth: \"-3\" is no valid value"),
            std::string::npos);
  EXPECT_NE(
      error(without(text, "block_size") + "block_size: 1000\n").find("1000 is no multiple of 4096"),
      std::string::npos);
  for (const char* rate : {"0", "-1", "inf", "nan"}) {
    EXPECT_NE(error(without(text, "write_gb_per_second") + "write_gb_per_second: " + rate + "\n")
                  .find("write_gb_per_second: "),
              std::string::npos)
        << rate;
  }
  EXPECT_NE(
      error(without(text, "engine") + "engine: fast\n").find("engine: \"fast\" is no valid value"),
      std::string::npos);
  EXPECT_NE(error(without(text, "version") + "version: 2\n")
                .find("version 2, this program reads version 1"),
            std::string::npos);
  EXPECT_NE(error("depth").find("p:1: expected \"key: value\", found \"depth\""),
            std::string::npos);
}

TEST(Profile, IsSavedWholeAndLoaded) {
  TestDirectory directory;
  EXPECT_FALSE(load_profile(directory.path()).has_value());
  save_profile(directory.path(), example());
  EXPECT_EQ(profile_yaml(load_profile(directory.path()).value()), profile_yaml(example()));
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory.path()))
    ++files;
  EXPECT_EQ(files, 1);
  EXPECT_NE(stale_reason(example(), directory.path())
                .find("it was measured on drive \"Model # 1: fast\", this is "),
            std::string::npos);
  EXPECT_NE(error_of([] {
              save_profile("/nowhere", example());
            }).find("creating /nowhere/zinf-nvme.yaml: No such file"),
            std::string::npos);
}

}  // namespace
}  // namespace zinf::nvme
