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
#include "tests/nvme/paced_drives.h"
#include "tests/nvme/test_support.h"
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
    const nvme::DriveSettings& settings = store.settings_of(store.drives[0]);
    std::string text = str(nvme::engine_kind_name(settings.engine), " ", settings.block_size, " ",
                           settings.depth, " weight ", store.drives[0].weight);
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

TEST(SeveralDrives, FoldersOfOneFileSystemShareItsSpace) {
  const testing::TempFolder first, second;
  const std::string file = first.path() + "/run.yaml";
  const auto nvme_budget = [&](const std::string& capacity) {
    std::ofstream(file) << "{model: {type: mlp, width: 8, layers: 1}, data: {format: random}, "
                           "train: {steps: 1}, memory: {host: 1GiB, device: 64MiB, nvme: [{path: "
                        << first.path() << capacity << "}, {path: " << second.path() << capacity
                        << "}]}}";
    return budgets(config::load(file, {}).config, 0).nvme;
  };
  EXPECT_EQ(nvme_budget(", capacity: 1MiB"), 2 * kMiB);
  const Bytes both = nvme_budget("");  // nine tenths of what is free; others write here too
  EXPECT_LT(both, nvme::free_bytes(first.path()) / 10 * 13);
}

// Two tuned folders, one three times as fast as the other, and a config with them.
class TunedDrives : public ::testing::Test {
 protected:
  TunedDrives() {
    tune(first_.path(), nvme::EngineKind::kThreads, 128 * kKiB, 3, 3);
    tune(second_.path(), nvme::EngineKind::kAuto, 64 * kKiB, 5, 1);
  }
  static void tune(const std::string& folder, nvme::EngineKind engine, Bytes block, int depth,
                   double gb_per_second) {
    nvme::NvmeProfile profile;
    profile.engine = engine;
    profile.block_size = block;
    profile.depth = depth;
    profile.read_gb_per_second = profile.write_gb_per_second = profile.mixed_gb_per_second =
        gb_per_second;
    const nvme::DirectoryFacts facts = nvme::probe_directory(folder);
    const nvme::DeviceInfo device = nvme::device_of(folder);
    profile.device = device.model.empty() ? device.name : device.model;
    profile.file_system = facts.file_system;
    profile.direct = facts.direct;
    nvme::save_profile(folder, profile);
  }
  config::RunConfig config_with(const std::string& first_capacity,
                                const std::string& io = "{}") const {
    const std::string file = first_.path() + "/run.yaml";
    std::ofstream(file) << "{model: {type: mlp, width: 512, layers: 4}, data: {format: random}, "
                           "train: {steps: 1}, placement: {weights: nvme, optimizer: nvme}, "
                           "train_micro_batch_size_per_gpu: 1, io: "
                        << io
                        << ", memory: {host: 1GiB, device: 64MiB, nvme: [{path: " << first_.path()
                        << ", capacity: " << first_capacity << "}, {path: " << second_.path()
                        << ", capacity: 1GiB}]}}";
    return config::load(file, {}).config;
  }
  testing::TempFolder first_, second_;
};

TEST_F(TunedDrives, EachIsReadAndWrittenWithItsOwnSettings) {
  nvme::StoreOptions store = *store_options(config_with("1GiB"), "area");
  EXPECT_EQ(store.settings_of(store.drives[0]).engine, nvme::EngineKind::kThreads);
  EXPECT_EQ(store.settings_of(store.drives[1]).engine, nvme::EngineKind::kAuto);
  EXPECT_EQ(store.settings_of(store.drives[0]).depth, 3);
  EXPECT_EQ(store.settings_of(store.drives[1]).depth, 5);
  EXPECT_EQ(store.settings_of(store.drives[1]).block_size, 64 * kKiB);
  // What the config says is said of all.
  store = *store_options(config_with("1GiB", "{depth: 7, engine: threads}"), "area");
  for (const nvme::DriveOptions& drive : store.drives) {
    EXPECT_EQ(store.settings_of(drive).depth, 7);
    EXPECT_EQ(store.settings_of(drive).engine, nvme::EngineKind::kThreads);
  }
  EXPECT_EQ(store.settings_of(store.drives[1]).block_size, 64 * kKiB);
}

// The fast drive has room for a sixth of its share: the plan is of the slow one's pace, before the
// area is there and once it is, with whatever room by then.
TEST_F(TunedDrives, OneWithoutRoomForItsShareSlowsThePlan) {
  optim::Pool pool(1);
  const auto plan_of = [&](const config::RunConfig& config, plan::Hardware& hardware, bool fresh) {
    const ModelInput model = open_model(config, false);
    const BatchShape batch = batch_shape(config, model, 1);
    const plan::ShapeClass shape{static_cast<int>(batch.micro), 1};
    const optim::Optimizer optimizer(optimizer_format(config, model.compute_type()), {});
    hardware = measure_hardware(config, optimizer, pool);
    hardware.flops_per_second = 1e12;
    return plan_with_room(
        state_store(config, first_.path(), "area", hardware), fresh, hardware, [&] {
          return make_plan(plan_request(config, model, batch, shape,
                                        estimate_stages(model.model.spec, shape), hardware,
                                        budgets_now(config, model.compute_type())));
        });
  };
  plan::Hardware roomy, tight, kept, anew;
  const plan::Plan fast = plan_of(config_with("1GiB"), roomy, false);
  EXPECT_NEAR(roomy.nvme_mixed, 4e9, 4e7);
  const Bytes room = kMiB + fast.nvme_bytes / 8;  // behind the header
  const config::RunConfig narrow = config_with(str(room, "B"));
  const plan::Plan slow = plan_of(narrow, tight, false);
  EXPECT_GT(slow.forecast.step_seconds, fast.forecast.step_seconds);

  nvme::Store store(state_store(narrow, first_.path(), "area", tight));
  store.allocate(slow.nvme_bytes);
  store.open(nvme::OpenMode::kCreate);
  const double share = static_cast<double>(store.drive_bytes(0) - kMiB) / slow.nvme_bytes;
  EXPECT_LT(share, 0.126);
  for (const double rate : {tight.nvme_read, tight.nvme_write, tight.nvme_mixed})
    EXPECT_NEAR(rate, 1e9 / (1 - share), 3e7);

  plan_of(config_with("1GiB"), kept, false);
  EXPECT_NEAR(kept.nvme_mixed, tight.nvme_mixed, 1e7);
  plan_of(config_with("1GiB"), anew, true);
  EXPECT_NEAR(anew.nvme_mixed, 4e9, 4e7);
}

// Without a profile the drives are measured, and share the traffic by that: both are busy for the
// same time. The slower reads and writes at a third of the other's speed.
TEST(SeveralDrives, AreMeasuredAndShareTheTrafficByIt) {
  const testing::TempFolder first, second;
  nvme::PacedDrives drives({{first.path(), 600e6, 300e6}, {second.path(), 200e6, 100e6}});
  nvme::BenchOptions bench;
  bench.wrap_engine = drives.wrapper();
  bench.clock = drives.clock();
  const std::string file = first.path() + "/run.yaml";
  std::ofstream(file) << "{model: {type: mlp, width: 8, layers: 1}, data: {format: random}, train: "
                         "{steps: 1}, memory: {host: 1GiB, device: 64MiB, nvme: [{path: "
                      << first.path() << ", capacity: 64MiB}, {path: " << second.path()
                      << ", capacity: 64MiB}]}}";
  const config::RunConfig config = config::load(file, {}).config;
  optim::Pool pool(1);
  plan::Hardware hardware =
      measure_hardware(config, optim::Optimizer(optim::Format{}, {}), pool, bench);
  EXPECT_NEAR(hardware.nvme_read, 800e6, 800e6 * 0.05);
  EXPECT_NEAR(hardware.nvme_write, 400e6, 400e6 * 0.05);
  ASSERT_EQ(hardware.drives.size(), 2u);
  EXPECT_DOUBLE_EQ(hardware.nvme_mixed, hardware.drives[0].mixed + hardware.drives[1].mixed);

  nvme::StoreOptions options = state_store(config, first.path(), "area", hardware);
  options.wrap_engine = drives.wrapper();
  nvme::Store store(options);
  const Bytes bytes = 64 * kMiB;
  const nvme::ExtentId extent = store.allocate(bytes);
  store.open(nvme::OpenMode::kCreate);
  const nvme::Memory memory(bytes);
  const std::vector<nvme::PacedDrive> before = drives.drives();
  for (const bool is_write : {true, false}) {
    nvme::wait_for([&](nvme::IoCallback done) {
      if (is_write) {
        store.write(extent, 0, memory.data(), bytes, done);
      } else {
        store.read(extent, 0, memory.data(), bytes, done);
      }
    }).throw_if_failed();
  }
  const auto share = [&](Bytes part) { return static_cast<double>(part) / bytes; };
  const std::vector<nvme::DriveCounters> counters = store.counters();
  for (const auto& [drive, expected] : {std::pair{0, 0.75}, {1, 0.25}}) {
    EXPECT_NEAR(share(counters[drive].lane.bytes_written), expected, expected * 0.05) << drive;
    EXPECT_NEAR(share(counters[drive].lane.bytes_read), expected, expected * 0.05) << drive;
    const double least = static_cast<double>(bytes) * (1 / 800e6 + 1 / 400e6);
    EXPECT_NEAR(drives.drives()[drive].busy_seconds - before[drive].busy_seconds, least,
                least * 0.05)
        << drive;
  }

  hardware.drives.clear();  // too little space to measure
  EXPECT_EQ(state_store(config, first.path(), "area", hardware).drives[0].weight, 1);
}

}  // namespace
}  // namespace zinf::train
