#include "engine/train/drives.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "nvme/drive_room.h"

namespace zinf::train {

double striped_rate(const std::vector<double>& rates, const std::vector<double>& weights) {
  double sum = 0;
  for (const double weight : weights) sum += weight;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < rates.size(); ++i)
    least = std::min(least, rates[i] * sum / weights[i]);
  return least;
}

void combine_drives(plan::Hardware& hardware, const std::vector<double>& shares) {
  const auto together = [&](double plan::DriveRates::*rate) {
    std::vector<double> rates;
    for (const plan::DriveRates& drive : hardware.drives) rates.push_back(drive.*rate);
    return striped_rate(rates, shares);
  };
  hardware.nvme_read = together(&plan::DriveRates::read);
  hardware.nvme_write = together(&plan::DriveRates::write);
  hardware.nvme_mixed = together(&plan::DriveRates::mixed);
}

void combine_drives(plan::Hardware& hardware) {
  std::vector<double> mixed;
  for (const plan::DriveRates& drive : hardware.drives) mixed.push_back(drive.mixed);
  combine_drives(hardware, mixed);
}

void probe_drives(const nvme::StoreOptions& store, Bytes bytes, plan::Hardware& hardware,
                  const nvme::BenchOptions& bench) {
  constexpr double kSeconds = 0.15;  // of each measurement, however slow the drive
  nvme::BenchOptions options;
  options.wrap_engine = bench.wrap_engine;
  options.clock = bench.clock;
  options.engine = store.engine;
  options.seconds = kSeconds;
  // A small scratch file holds fewer and smaller blocks than the run will have in flight.
  options.block_size = std::min(store.block_size, bytes / 16 / 4096 * 4096);
  if (options.block_size == 0) {  // too little space to measure: rates of a slow drive
    hardware.nvme_read = hardware.nvme_write = hardware.nvme_mixed = 0.5e9;
    return;
  }
  options.depth = static_cast<int>(
      std::clamp<Bytes>(bytes / 4 / options.block_size, 1, static_cast<Bytes>(store.depth)));
  for (const nvme::DriveOptions& drive : store.drives) {
    nvme::DriveBench of_drive(drive.path, bytes, false, bench.wrap_engine);
    plan::DriveRates& rates = hardware.drives.emplace_back();
    for (const auto& [traffic, rate] : {std::pair{nvme::Traffic::kWrite, &rates.write},
                                        {nvme::Traffic::kRead, &rates.read},
                                        {nvme::Traffic::kMixed, &rates.mixed}}) {
      options.traffic = traffic;
      *rate = of_drive.run(options).gb_per_second * 1e9;
    }
  }
  combine_drives(hardware);
}

plan::Plan plan_with_room(const nvme::StoreOptions& store, bool fresh, plan::Hardware& hardware,
                          const std::function<plan::Plan()>& make) {
  plan::Plan plan = make();
  if (hardware.drives.size() < 2 || plan.nvme_bytes == 0) return plan;
  const double as_planned = hardware.nvme_mixed;
  combine_drives(hardware, nvme::planned_shares(store, plan.nvme_bytes, !fresh));
  // Shares are whole stripe units.
  constexpr double kSame = 0.01;
  if (std::abs(hardware.nvme_mixed / as_planned - 1) < kSame) return plan;
  return make();
}

}  // namespace zinf::train
