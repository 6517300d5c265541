#include "engine/train/budgets.h"

#include <algorithm>
#include <map>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/machine.h"
#include "engine/base/str.h"
#include "engine/train/run_area.h"
#include "nvme/areas.h"
#include "nvme/directory.h"

namespace zinf::train {

namespace {

constexpr Bytes kHostAllowance = 48 * kMiB;
// oneDNN's 16-bit products take scratchpads from the heap and keep what they have compiled: 27 MiB
// beyond the allowance were measured with SmolLM2-135M.
constexpr Bytes kHalfAllowance = 48 * kMiB;
// What is resident of the same program differs by tens of KiB from start to start.
constexpr Bytes kBaseVaries = 256 * kKiB;

}  // namespace

Bytes host_base_now(model::DType compute) {
  return resident_bytes() + kHostAllowance +
         (compute == model::DType::kBFloat16 ? kHalfAllowance : 0);
}

Bytes default_host_budget() {
  const Bytes available = usable_memory() + resident_bytes();
  return available - std::min(available, std::max<Bytes>(2 * kGiB, available / 10));
}

void refuse_beyond_machine(const plan::Plan& plan) {
  const Bytes machine = memory_limit(), available = usable_memory() + resident_bytes();
  const std::string takes =
      str("the run keeps up to ", format_bytes(plan.host_bytes), " in memory");
  if (plan.host_bytes > machine) {
    throw Error(ErrorKind::kDoesNotFit,
                str(takes, ", as memory.host allows; this machine, or this process's cgroup, has ",
                    format_bytes(machine)),
                str("--set memory.host=", default_host_budget() / kMiB, "MiB, or leave it out"));
  }
  if (plan.host_bytes > available) {
    log::warning(str(takes, ", and only ", format_bytes(available),
                     " are available now: other processes hold the rest"));
  }
}

plan::Budgets budgets(const config::RunConfig& config, Bytes host_base,
                      const std::optional<std::string>& of_run) {
  plan::Budgets result;
  result.host_base = host_base;
  result.host_base_varies = kBaseVaries;
  result.machine = memory_limit();
  result.host = config.memory.host.value_or(default_host_budget());
  result.device = config.memory.device.value_or(result.host / 4);
  result.device_follows_host = !config.memory.device;
  // Folders of one file system share its space.
  struct Space {
    Bytes free = 0;
    Bytes capacities = 0;
    bool bounded = true;  // each folder by its capacity
  };
  std::map<std::uint64_t, Space> spaces;
  const std::string area = of_run.value_or(area_name(config.output_dir));
  for (const config::NvmeDrive& drive : config.memory.nvme) {
    nvme::check_directory(drive.path);
    const auto [entry, made] = spaces.try_emplace(nvme::file_system_id(drive.path));
    Space& space = entry->second;
    if (made) space.free = nvme::free_bytes(drive.path);
    // What this run's area takes already is this run's to use.
    for (const char* part : {"", "-scratch"})
      space.free += nvme::taken_bytes(nvme::area_file(drive.path, area + part));
    space.capacities += drive.capacity.value_or(0);
    space.bounded &= drive.capacity.has_value();
  }
  for (const auto& [id, space] : spaces) {
    result.nvme +=
        space.bounded ? std::min(space.capacities, space.free) : space.free - space.free / 10;
    if (space.bounded && space.capacities < space.free)
      result.nvme_limit = plan::Budgets::NvmeLimit::kCapacity;
  }
  return result;
}

plan::Budgets budgets_now(const config::RunConfig& config, model::DType compute,
                          const std::optional<std::string>& of_run) {
  return budgets(config, host_base_now(compute), of_run);
}

}  // namespace zinf::train
