// zinf-hardware.yaml: every key is written, read, and changes the plan or refuses the file.
#include "engine/train/hardware_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "engine/base/error.h"
#include "engine/base/machine.h"
#include "engine/base/str.h"
#include "engine/config/load.h"
#include "engine/train/plan_run.h"
#include "tests/step/temp_folder.h"

namespace zinf::train {
namespace {

HardwareFile example() {
  HardwareFile file;
  file.processor = processor_name();
  file.threads = usable_cores();
  file.copy_to_device_gb_per_second = 11;
  file.copy_from_device_gb_per_second = 12;
  file.host_gb_per_second = 40;
  file.optimizer_gb_per_second = 30;
  file.stages["0123456789abcdef"] = {0.1, 0.2, 0.15, 0.1};
  return file;
}

std::string error_of(const std::string& text) {
  try {
    parse_hardware(text, "h");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string replaced(const std::string& yaml, const std::string& key, const std::string& line) {
  const std::size_t from = yaml.find("\n" + key + ":") + 1;
  return yaml.substr(0, from) + line + yaml.substr(yaml.find('\n', from) + (line.empty() ? 1 : 0));
}

const char* const kKeys[] = {"version",
                             "processor",
                             "threads",
                             "copy_to_device_gb_per_second",
                             "copy_from_device_gb_per_second",
                             "host_gb_per_second",
                             "optimizer",
                             "optimizer_gb_per_second"};

TEST(HardwareFile, IsReadAsWrittenAndRefusesWhatItDoesNotKnow) {
  const std::string yaml = hardware_yaml(example());
  EXPECT_EQ(hardware_yaml(parse_hardware(yaml, "h")), yaml);
  for (const char* key : kKeys) {
    EXPECT_NE(error_of(replaced(yaml, key, "")).find(str("key ", key, " is missing")),
              std::string::npos)
        << key;
  }
  EXPECT_NE(error_of(yaml + "network: 3\n").find("unknown key network"), std::string::npos);
  EXPECT_NE(error_of(replaced(yaml, "version", "version: 2")).find("version 2, this program reads"),
            std::string::npos);
  EXPECT_NE(error_of(replaced(yaml, "threads", "threads: 0")).find("is no valid value"),
            std::string::npos);
  EXPECT_NE(error_of(yaml + "stage_1: [1, 2, 3]\n").find("is no valid value"), std::string::npos);
}

class TunedHardware : public ::testing::Test {
 protected:
  TunedHardware()
      : config_(config::load_text(
                    str("{model: {type: mlp, width: 32, layers: 2}, data: {format: random}, "
                        "train: {steps: 1}, train_micro_batch_size_per_gpu: 2, "
                        "memory: {host: 1GiB, device: 64MiB, nvme: [{path: ",
                        folder_.path(), ", capacity: 64MiB}]}}"),
                    "test")
                    .config),
        model_(open_model(config_, false)),
        optimizer_(optimizer_format(config_, model_.compute_type()), optimizer_hyper(config_)) {}

  void write(const HardwareFile& file) {
    std::ofstream(hardware_path(folder_.path())) << hardware_yaml(file);
  }

  // What the plan sees, as one text.
  std::string seen() {
    const plan::ShapeClass shape{2, 1};
    StageProbe probe = estimate_stages(model_.model.spec, shape);
    probe.seconds.assign(model_.model.spec.stages.size(), {1, 1, 1, 1});
    const plan::Hardware hardware =
        plan_request(config_, model_, {2, 1}, shape, probe,
                     measure_hardware(config_, optimizer_, pool_), budgets(config_, kMiB))
            .hardware;
    std::string text = str(hardware.host_to_device, " ", hardware.device_to_host, " ",
                           hardware.optimizer_bytes_per_second);
    for (const plan::StageSeconds& stage : hardware.stages)
      text += str(" ", stage.forward, " ", stage.backward, " ", stage.backward_kept, " ",
                  stage.evaluate);
    return text;
  }

  testing::TempFolder folder_;
  config::RunConfig config_;
  ModelInput model_;
  optim::Optimizer optimizer_;
  optim::Pool pool_;
};

TEST_F(TunedHardware, EveryKeyChangesWhatThePlanSees) {
  HardwareFile file = example();
  file.optimizer = optimizer_name(optimizer_.format());
  file.stages.clear();
  const std::string signature = stage_signature(model_.model.spec, 0, {2, 1});
  file.stages[signature] = {0.1, 0.2, 0.15, 0.1};
  write(file);
  const std::string base = seen();
  EXPECT_EQ(base.find("1.1e+10 1.2e+10 3e+10 0.1 0.2 0.15 0.1"), 0u) << base;
  EXPECT_EQ(seen(), base);
  const auto changed = [&](auto change) {
    HardwareFile other = file;
    change(other);
    write(other);
    return seen();
  };
  // Of another machine: nothing of it is used, not even what was measured well.
  for (const std::string& stale : {changed([](HardwareFile& f) { f.processor += " II"; }),
                                   changed([](HardwareFile& f) { f.threads += 1; })}) {
    EXPECT_EQ(stale.find("1.1e+10 1.2e+10"), std::string::npos) << stale;
    EXPECT_NE(stale.find(" 1 1 1 1"), std::string::npos) << stale;
  }
  EXPECT_NE(changed([](HardwareFile& f) { f.copy_to_device_gb_per_second = 5; }), base);
  EXPECT_NE(changed([](HardwareFile& f) { f.copy_from_device_gb_per_second = 5; }), base);
  EXPECT_NE(changed([](HardwareFile& f) { f.optimizer_gb_per_second = 5; }), base);
  EXPECT_NE(changed([](HardwareFile& f) { f.host_gb_per_second = 5; }), base);  // limits the update
  // The rate of another optimizer is not this one's: it is probed, and lies under the memory's.
  const std::string probed = changed([](HardwareFile& f) {
    f.optimizer = "another";
    f.host_gb_per_second = 0.001;
  });
  EXPECT_EQ(probed.find("1.1e+10 1.2e+10 1e+06"), 0u) << probed;
  EXPECT_NE(changed([&](HardwareFile& f) { f.stages[signature].backward = 0.3; }), base);
  EXPECT_NE(changed([&](HardwareFile& f) { f.stages.clear(); }), base);
}

TEST_F(TunedHardware, WithoutAFileEverythingIsMeasured) {
  EXPECT_FALSE(tuned_hardware(config_).has_value());
  EXPECT_NE(seen().find(" 1 1 1 1"), std::string::npos);
}

}  // namespace
}  // namespace zinf::train
