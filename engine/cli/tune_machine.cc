#include "engine/cli/tune_machine.h"

#include <iostream>

#include "engine/base/log.h"
#include "engine/base/str.h"
#include "engine/cli/terminal.h"
#include "engine/observe/atomic_file.h"
#include "engine/train/measure_machine.h"

namespace zinf::cli {

namespace {

constexpr int kRepetitions = 3;

void print_report(const train::MachineReport& report) {
  const train::HardwareFile& file = report.file;
  const auto line = [](const std::string& what, double value, const char* unit,
                       const std::string& note) {
    std::cout << "  " << left(what, 26) << right(short_number(value), 8) << " " << left(unit, 9)
              << note << "\n";
  };
  std::cout << "\n" << file.processor << ", " << file.threads << " threads\n";
  line("compute, forward", report.flops_per_second / 1e9, "GFLOP/s", report.model);
  line("copies, host to device", file.copy_to_device_gb_per_second, "GB/s",
       "while the other direction runs");
  line("copies, device to host", file.copy_from_device_gb_per_second, "GB/s", "likewise");
  line("memory, in place", file.host_gb_per_second, "GB/s", "read and written, no arithmetic");
  line("optimizer", file.optimizer_gb_per_second, "GB/s", file.optimizer);
}

}  // namespace

nlohmann::ordered_json tune_machine(const std::optional<config::RunConfig>& config,
                                    const std::string& directory, bool print) {
  ProgressLine progress;
  const train::MachineReport report = train::measure_machine(
      config, kRepetitions,
      [&](const std::string& what) { progress.show(str("measuring ", what)); });
  progress.clear();
  const std::string path = train::hardware_path(directory);
  observe::write_file_atomically(path, train::hardware_yaml(report.file),
                                 observe::Durability::kSynced);
  log::info(str(path, " written; zinf plan and zinf train read it"));
  if (print) print_report(report);
  const train::HardwareFile& file = report.file;
  nlohmann::ordered_json json;
  json["machine"] = file.processor;
  json["threads"] = file.threads;
  json["model"] = report.model;
  json["forward_flops_per_second"] = report.flops_per_second;
  json["copy_to_device_gb_per_second"] = file.copy_to_device_gb_per_second;
  json["copy_from_device_gb_per_second"] = file.copy_from_device_gb_per_second;
  json["host_gb_per_second"] = file.host_gb_per_second;
  json["optimizer"] = file.optimizer;
  json["optimizer_gb_per_second"] = file.optimizer_gb_per_second;
  json["profile"] = path;
  return json;
}

}  // namespace zinf::cli
