#include "engine/train/plan_only.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/machine.h"
#include "engine/base/str.h"
#include "engine/model/torch_compute.h"
#include "engine/model/torch_runtime.h"
#include "engine/plan/explain.h"
#include "engine/train/plan_run.h"
#include "engine/train/run_area.h"

namespace zinf::train {

namespace {

struct GivenDrive {
  Bytes size = 0;
  double read = 0, write = 0;  // bytes/s
  Bytes endurance = 0;
};

GivenDrive parse_drive(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream in(text);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  const auto fail = [&] {
    throw Error(ErrorKind::kUsage,
                str("--nvme: expected SIZE,rGBs,wGBs,TBW such as 2TB,7GBs,5GBs,1200TBW, found \"",
                    text, "\""));
  };
  if (parts.size() < 3 || parts.size() > 4) fail();
  GivenDrive drive;
  const auto size = parse_bytes(parts[0]);
  // "7", "7GBs" or "7GB/s".
  const auto rate = [&](const std::string& part) {
    char* end = nullptr;
    const double value = std::strtod(part.c_str(), &end) * 1e9;
    const std::string_view unit = end;
    if (!(value > 0) || !std::isfinite(value) || (!unit.empty() && unit != "GBs" && unit != "GB/s"))
      fail();
    return value;
  };
  drive.read = rate(parts[1]);
  drive.write = rate(parts[2]);
  if (!size || *size == 0) fail();
  drive.size = *size;
  if (parts.size() == 4) {
    if (parts[3].ends_with('W')) parts[3].pop_back();  // "1200TBW"
    const auto endurance = parse_bytes(parts[3]);
    if (!endurance) fail();
    drive.endurance = *endurance;
  }
  return drive;
}

void print_wear(const config::RunConfig& config, const plan::Plan& plan, Bytes endurance) {
  for (const config::NvmeDrive& drive : config.memory.nvme)
    endurance = std::max(endurance, drive.endurance.value_or(0));
  if (plan.traffic.nvme_write == 0) return;
  std::cout << "Wear: " << format_bytes(plan.traffic.nvme_write) << " written a step";
  if (endurance > 0) {
    std::cout << "; an endurance of " << format_bytes(endurance) << " lasts "
              << endurance / plan.traffic.nvme_write << " steps";
    if (config.train.steps) {
      const double written =
          static_cast<double>(*config.train.steps) * static_cast<double>(plan.traffic.nvme_write);
      std::printf(", this run's %lld take %.3g %% of it",
                  static_cast<long long>(*config.train.steps),
                  100 * written / static_cast<double>(endurance));
    }
  }
  std::cout << "\n";
}

void print_textbook(double parameters, int ranks) {
  std::printf(
      "Textbook (2 + 2 + 12 bytes a parameter, %d ranks), per rank: stage 0 %.2f GB, 1 %.2f, 2 "
      "%.2f, 3 %.2f\n",
      ranks, plan::textbook_bytes_per_rank(parameters, 0, ranks) / 1e9,
      plan::textbook_bytes_per_rank(parameters, 1, ranks) / 1e9,
      plan::textbook_bytes_per_rank(parameters, 2, ranks) / 1e9,
      plan::textbook_bytes_per_rank(parameters, 3, ranks) / 1e9);
}

}  // namespace

int plan_only(const config::LoadResult& loaded, const PlanOnlyOptions& options) {
  const config::RunConfig& config = loaded.config;
  say_notes(loaded);
  refuse_unsupported(config);
  // A drive that is given need not be here.
  config::RunConfig here = config;
  if (!options.nvme.empty()) {
    std::erase_if(here.memory.nvme, [](const config::NvmeDrive& drive) {
      return !std::filesystem::exists(drive.path);
    });
  }
  const ModelInput model = open_model(config, false);
  const std::int64_t length = row_length(config, model);
  const BatchShape batch = batch_shape(here, model, length);
  const plan::ShapeClass shape{static_cast<int>(batch.micro), static_cast<int>(length)};
  const optim::Optimizer optimizer(optimizer_format(config, model.compute_type()),
                                   optimizer_hyper(config));
  optim::Pool pool(optimizer_threads(config));
  const bool given_device = !options.gpu.empty() || options.device_memory;
  const auto gpu = plan::find_gpu(options.gpu.empty() ? "RTX4090" : options.gpu);
  if (!gpu)
    throw Error(ErrorKind::kUsage,
                str("--gpu: unknown class \"", options.gpu, "\"; known: ", plan::gpu_names()));
  std::optional<GivenDrive> drive;
  if (!options.nvme.empty()) drive = parse_drive(options.nvme);
  const auto budget_now = [&] {
    plan::Budgets budget = budgets_now(here, model.compute_type());
    if (given_device) {
      budget.device_in_host = budget.device_follows_host = false;
      budget.device_option = "--device-memory ";
      const Bytes of_class = gpu->memory - gpu->memory / 16;
      budget.device = options.device_memory.value_or(of_class);
    }
    if (options.host_memory) {
      budget.host = *options.host_memory;
      budget.host_option = "--host-memory ";
      budget.machine.reset();
      if (budget.device_follows_host) budget.device = budget.host / 4;
    }
    if (drive) {
      budget.nvme = drive->size;
      budget.nvme_limit = plan::Budgets::NvmeLimit::kGiven;
    }
    return budget;
  };
  const auto plan_now = [&] {
    plan::Hardware hardware;
    StageProbe probe;
    if (given_device) {
      probe = estimate_stages(model.model.spec, shape);
      probe_host(optimizer, pool, hardware);
      hardware.flops_per_second = gpu->bf16_flops;
      hardware.host_to_device = hardware.device_to_host = gpu->copy_per_second;
      hardware.origin = "given";
    } else {
      model::set_compute_threads(usable_physical_cores());
      const plan::Budgets budget = budget_now();
      // The budgets are the run's: measuring may take what this machine has.
      refuse_too_large(config, model, batch, shape, budget,
                       std::max(budget.host, usable_memory() + resident_bytes()));
      const auto compute = make_torch_compute(model.model);
      probe = probe_stages(model.model.spec, *compute, shape, budget.device);
      hardware = measure_hardware(here, optimizer, pool);
    }
    if (drive) {
      hardware.drives.clear();
      hardware.nvme_read = drive->read;
      hardware.nvme_write = drive->write;
      hardware.nvme_mixed = (drive->read + drive->write) / 2;
    }
    const auto store = state_store(here, config.output_dir, area_name(config.output_dir), hardware);
    return plan_with_room(store, false, hardware, [&] {
      return make_plan(plan_request(config, model, batch, shape, probe, hardware, budget_now()));
    });
  };
  const auto plan_or_refusal = [&] {
    try {
      return plan_now();
    } catch (const Error& error) {
      // Scripts read why; people are told by the command line.
      if (options.json && error.kind() == ErrorKind::kDoesNotFit)
        std::cout << plan::refusal_json(model.model.spec, budget_now(), error.what(),
                                        options.ranks);
      throw;
    }
  };
  const plan::Plan plan = plan_or_refusal();
  if (options.json) {
    std::cout << plan::explain_json(plan, options.ranks);
  } else {
    std::cout << plan::explain(plan);
    print_wear(config, plan, drive ? drive->endurance : 0);
    print_textbook(static_cast<double>(plan.model->parameters()), options.ranks);
  }
  return 0;
}

}  // namespace zinf::train
