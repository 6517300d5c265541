#include "nvme/drive_room.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "nvme/area_header.h"
#include "nvme/areas.h"
#include "nvme/directory.h"
#include "nvme/stripe_map.h"
#include "nvme/swap_file.h"

namespace zinf::nvme {

namespace {

constexpr double kAsGood = 0.99;  // a share this close to what was wanted is nothing to speak of

double share_of(const std::vector<std::uint32_t>& counts, std::size_t drive) {
  return counts[drive] / static_cast<double>(std::accumulate(counts.begin(), counts.end(), 0u));
}

}  // namespace

std::vector<std::uint32_t> stripe_counts_with_room(const StoreOptions& options,
                                                   const std::vector<std::string>& files,
                                                   Bytes total, bool replace) {
  const std::vector<DriveOptions>& drives = options.drives;
  std::vector<double> weights;
  std::map<std::uint64_t, double> on_file_system;  // weights: folders of one share its free space
  for (const DriveOptions& drive : drives) {
    weights.push_back(drive.weight);
    on_file_system[file_system_id(drive.path)] += drive.weight;
  }
  std::vector<Bytes> room;
  for (std::size_t i = 0; i < drives.size(); ++i) {
    const double part = drives[i].weight / on_file_system[file_system_id(drives[i].path)];
    Bytes free = static_cast<Bytes>(static_cast<double>(free_bytes(drives[i].path)) * part);
    if (replace) free += taken_bytes(files[i]);
    // Half of what plans leave free: for rounding, and for what else is written there.
    free = drives[i].capacity > 0 ? std::min(free, drives[i].capacity) : free - free / 20;
    room.push_back(free - std::min(free, kAreaDataStart));
  }
  const std::vector<std::uint32_t> by_weight = stripe_counts(weights);
  const std::vector<std::uint32_t> counts =
      stripe_counts(weights, room, total, options.stripe_unit);
  for (std::size_t i = 0; counts != by_weight && i < drives.size(); ++i) {
    const double wanted = share_of(by_weight, i), given = share_of(counts, i);
    if (given > wanted * kAsGood) continue;
    log::warning_once(fmt::format(
        "{} has room for {} of the {} of this area: it takes {:.1f} %, not the {:.1f} "
        "% that its speed asks for; the other drives take the rest and set the pace",
        drives[i].path, format_bytes(room[i]), format_bytes(total), given * 100, wanted * 100));
  }
  return counts;
}

std::vector<double> planned_shares(const StoreOptions& options, Bytes total, bool stays) {
  std::vector<std::string> files;
  for (const DriveOptions& drive : options.drives)
    files.push_back(area_file(drive.path, options.area));
  std::vector<std::uint32_t> counts;
  if (stays && taken_bytes(files[0]) > 0) {
    try {
      const DirectoryFacts facts = probe_directory(options.drives[0].path);
      counts = read_area_header(SwapFile::reopen(files[0], facts, true)).stripe_counts;
    } catch (const Error&) {
      // Whoever opens the area says what is wrong with it.
    }
  }
  if (counts.size() != files.size()) counts = stripe_counts_with_room(options, files, total, true);
  std::vector<double> shares;
  for (std::size_t i = 0; i < counts.size(); ++i) shares.push_back(share_of(counts, i));
  return shares;
}

}  // namespace zinf::nvme
