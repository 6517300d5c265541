// zinf-nvme.yaml: every key decides something, for the store, for the plan, or whether the file is
// used at all.
#include <gtest/gtest.h>

#include <fstream>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/config/load.h"
#include "engine/train/plan_run.h"
#include "nvme/device_info.h"
#include "nvme/directory.h"
#include "nvme/profile.h"
#include "tests/step/temp_folder.h"

namespace zinf::train {
namespace {

// What plan and train make of the profile in the folder: settings, rates, or a refusal.
std::string outcome(const std::string& folder) {
  const std::string file = str(folder, "/run.yaml");
  std::ofstream(file) << "{model: {type: mlp, width: 8, layers: 1}, data: {format: random}, train: "
                         "{steps: 1}, memory: {host: 1GiB, device: 64MiB, nvme: [{path: "
                      << folder << ", capacity: 1GiB}]}}";
  try {
    const config::RunConfig config = config::load(file, {}).config;
    const nvme::StoreOptions store = *store_options(config, "area");
    optim::Pool pool(1);
    const optim::Optimizer optimizer(optim::Format{}, {});
    const plan::Hardware hardware = measure_hardware(config, optimizer, pool);
    std::string text = str(nvme::engine_kind_name(store.engine), " ", store.block_size, " ",
                           store.depth, " weight ", store.drives[0].weight);
    // Rates that are measured now differ from run to run; that they are measured does not.
    if (hardware.origin.find("zinf-nvme.yaml") == std::string::npos) return text + " not used";
    return str(text, " ", hardware.nvme_read, " ", hardware.nvme_write, " ", hardware.nvme_mixed);
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(NvmeProfile, EveryKeyDecidesSomething) {
  const testing::TempFolder folder;
  const nvme::DirectoryFacts facts = nvme::probe_directory(folder.path());
  const nvme::DeviceInfo device = nvme::device_of(folder.path());
  nvme::NvmeProfile profile;
  profile.engine = nvme::EngineKind::kThreads;
  profile.block_size = 512 * kKiB;
  profile.depth = 7;
  profile.read_gb_per_second = 3;
  profile.write_gb_per_second = 2;
  profile.mixed_gb_per_second = 2.5;
  profile.device = device.model.empty() ? device.name : device.model;
  profile.file_system = facts.file_system;
  profile.direct = facts.direct;
  const std::string yaml = nvme::profile_yaml(profile);
  const auto with = [&](const std::string& text) {
    std::ofstream(nvme::profile_path(folder.path())) << text;
    return outcome(folder.path());
  };
  const std::string used = with(yaml);
  EXPECT_EQ(used, "threads 524288 7 weight 2.5 3e+09 2e+09 2.5e+09");
  const std::pair<const char*, std::string> changes[] = {
      {"version", "2"},
      {"engine", "libaio"},
      {"block_size", "1048576"},
      {"depth", "8"},
      {"read_gb_per_second", "3.5"},
      {"write_gb_per_second", "3.5"},
      {"mixed_gb_per_second", "3.5"},
      {"device", "\"another drive\""},
      {"file_system", "\"another\""},
      {"direct", facts.direct ? "false" : "true"}};
  std::size_t keys = 0;
  std::istringstream lines(yaml);
  for (std::string line; std::getline(lines, line);) keys += line[0] != '#';
  EXPECT_EQ(keys, std::size(changes));
  for (const auto& [key, value] : changes) {
    const std::size_t from = yaml.find(str("\n", key, ": "));
    ASSERT_NE(from, std::string::npos) << key;
    const std::string changed =
        str(yaml.substr(0, from), "\n", key, ": ", value, yaml.substr(yaml.find('\n', from + 1)));
    EXPECT_NE(with(changed), used) << key;
  }
}

TEST(SeveralDrives, TheirRateIsThatOfTheOneWithTooLargeAShare) {
  EXPECT_DOUBLE_EQ(striped_rate({3e9, 1e9}, {3, 1}), 4e9);
  EXPECT_DOUBLE_EQ(striped_rate({3e9, 1e9}, {1, 1}), 2e9);
  EXPECT_DOUBLE_EQ(striped_rate({2e9}, {7}), 2e9);
}

// Without a profile the drives are measured, and share the traffic by that.
TEST(SeveralDrives, AreMeasuredAndShareTheTrafficByIt) {
  const testing::TempFolder first, second;
  const std::string file = first.path() + "/run.yaml";
  std::ofstream(file) << "{model: {type: mlp, width: 8, layers: 1}, data: {format: random}, train: "
                         "{steps: 1}, memory: {host: 1GiB, device: 64MiB, nvme: [{path: "
                      << first.path() << ", capacity: 64MiB}, {path: " << second.path()
                      << ", capacity: 64MiB}]}}";
  const config::RunConfig config = config::load(file, {}).config;
  optim::Pool pool(1);
  plan::Hardware hardware = measure_hardware(config, optim::Optimizer(optim::Format{}, {}), pool);
  ASSERT_EQ(hardware.drive_weights.size(), 2u);
  EXPECT_DOUBLE_EQ(hardware.nvme_mixed, hardware.drive_weights[0] + hardware.drive_weights[1]);
  hardware.drive_weights = {3e9, 1e9};
  const nvme::StoreOptions store = state_store(config, first.path(), "area", hardware);
  EXPECT_EQ(store.drives[0].weight, 3e9);
  EXPECT_EQ(store.drives[1].weight, 1e9);
  hardware.drive_weights.clear();  // tuned, or too little space to measure
  EXPECT_EQ(state_store(config, first.path(), "area", hardware).drives[0].weight, 1);
}

}  // namespace
}  // namespace zinf::train
