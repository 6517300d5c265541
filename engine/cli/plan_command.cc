#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "engine/cli/command.h"
#include "engine/cli/terminal.h"
#include "engine/config/load.h"
#include "engine/plan/hardware.h"
#include "engine/train/plan_only.h"

namespace zinf::cli {

void add_plan(CLI::App& app, Run& run) {
  struct Options {
    std::string config, gpu, device_memory, host_memory, nvme;
    std::vector<std::string> sets;
    int ranks = 1;
    bool json = false;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("plan", "say whether and how a run fits, before anything is loaded");
  command->add_option("CONFIG", options->config, "YAML or JSON config file")->required();
  command->add_option("--set", options->sets, "a.b=c: set a config key")->allow_extra_args(false);
  command->add_option("--gpu", options->gpu, "plan for a GPU of this class: " + plan::gpu_names());
  command->add_option("--device-memory", options->device_memory,
                      "plan for a device with this much memory");
  command->add_option("--host-memory", options->host_memory, "plan for this much host memory");
  command->add_option(
      "--nvme", options->nvme,
      "SIZE,rGBs,wGBs,TBW: plan for a drive of this size, read and write rate, endurance");
  command->add_option("--ranks", options->ranks, "ranks of the textbook column")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  command->add_flag("--json", options->json, "as JSON on stdout");
  command->footer(
      "Exit code 3: does not fit. Example: zinf plan run.yaml --gpu RTX4090 --host-memory 64GiB "
      "--nvme 2TB,6,5,1200TB");
  command->callback([options, &run] {
    run = [options] {
      train::PlanOnlyOptions plan;
      plan.gpu = options->gpu;
      if (!options->device_memory.empty())
        plan.device_memory = size_option("--device-memory", options->device_memory);
      if (!options->host_memory.empty())
        plan.host_memory = size_option("--host-memory", options->host_memory);
      plan.nvme = options->nvme;
      plan.ranks = options->ranks;
      plan.json = options->json;
      return train::plan_only(config::load(options->config, options->sets), plan);
    };
  });
}

}  // namespace zinf::cli
