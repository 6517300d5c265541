#include "nvme/device_info.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "nvme/directory.h"

namespace zinf::nvme {

namespace {

namespace fs = std::filesystem;

// First line of a file, without trailing blanks; empty when it can't be read.
std::string line_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  while (!line.empty() && (line.back() == ' ' || line.back() == '\n')) line.pop_back();
  return line;
}

Bytes number_of(const fs::path& path) { return std::strtoull(line_of(path).c_str(), nullptr, 10); }

// "none [mq-deadline] kyber" -> "mq-deadline".
std::string chosen(const std::string& list) {
  const auto from = list.find('['), to = list.find(']');
  return from == std::string::npos || to == std::string::npos
             ? list
             : list.substr(from + 1, to - from - 1);
}

std::optional<double> temperature(const fs::path& device) {
  std::error_code ignored;
  for (const auto& start : {device, device / "device"}) {
    for (const auto& entry : fs::directory_iterator(start, ignored)) {
      if (entry.path().filename().string().rfind("hwmon", 0) != 0) continue;
      for (const auto& place :
           {entry.path() / "temp1_input", entry.path() / "hwmon0" / "temp1_input"}) {
        if (const std::string text = line_of(place); !text.empty())
          return std::strtod(text.c_str(), nullptr) / 1000;
      }
    }
  }
  return std::nullopt;
}

std::string link_of(const fs::path& device) {
  // nvme0n1/device is the controller, whose own device is the PCI function.
  for (const auto& place : {device / "device", device}) {
    const std::string speed = line_of(place / "current_link_speed"),
                      width = line_of(place / "current_link_width");
    if (!speed.empty()) return speed + " x" + width;
  }
  return "";
}

}  // namespace

DeviceInfo device_of(const std::string& directory, const std::string& sysfs) {
  DeviceInfo info;
  struct stat found {};
  if (::stat(directory.c_str(), &found) != 0) return info;
  std::error_code error;
  fs::path block = fs::canonical(
      fmt::format("{}/dev/block/{}:{}", sysfs, major(found.st_dev), minor(found.st_dev)), error);
  if (error) return info;
  // Down to the drive itself, where there is one only: LVM may lie on dm-crypt.
  for (std::vector<fs::path> below{block}; below.size() == 1;) {
    block = below[0];
    if (fs::exists(block / "partition")) block = block.parent_path();
    const std::string uuid = line_of(block / "dm" / "uuid");
    const std::string layer = uuid.substr(0, uuid.find('-'));
    if (!layer.empty()) info.device_mapper += (info.device_mapper.empty() ? "" : " ") + layer;
    below.clear();
    for (const auto& entry : fs::directory_iterator(block / "slaves", error))
      below.push_back(fs::canonical(entry.path(), error));
  }
  info.name = block.filename().string();
  const fs::path queue = block / "queue", device = block / "device";
  info.model = line_of(device / "model");
  info.link = link_of(device);
  info.scheduler = chosen(line_of(queue / "scheduler"));
  info.write_cache = line_of(queue / "write_cache");
  info.logical_block = number_of(queue / "logical_block_size");
  info.physical_block = number_of(queue / "physical_block_size");
  info.largest_request = number_of(queue / "max_sectors_kb") * kKiB;
  // Virtual disks call themselves rotational without being so.
  info.rotational = number_of(queue / "rotational") == 1 && info.name.rfind("vd", 0) != 0 &&
                    info.name.rfind("xvd", 0) != 0;
  info.celsius = temperature(device);
  return info;
}

std::vector<std::string> device_warnings(const DeviceInfo& device, const std::string& file_system,
                                         bool direct, double free_share) {
  std::vector<std::string> warnings;
  const auto warn = [&](const std::string& text) { warnings.push_back(text); };
  const auto is = [&](std::initializer_list<const char*> names) {
    return std::find(names.begin(), names.end(), file_system) != names.end();
  };
  const auto mapped = [&](const char* layer) {
    return device.device_mapper.find(layer) != std::string::npos;
  };
  if (is_memory(file_system))
    warn(fmt::format(
        "{} is memory, not a drive: it saves none and its figures say nothing of a drive",
        file_system));
  if (is({"overlay"})) warn("overlay is a container's own layer: name a mounted volume instead");
  if (is({"nfs", "cifs", "smb", "ceph", "lustre", "gpfs", "9p", "fuse"})) {
    warn(fmt::format("{} is a network or user-space file system: rates vary and locks may not hold",
                     file_system));
  }
  if (is({"btrfs", "zfs", "bcachefs"})) {
    warn(
        fmt::format("{} copies on write: preallocated space is not kept and checksums cost time; "
                    "prefer ext4 or xfs (or chattr +C)",
                    file_system));
  }
  if (mapped("CRYPT")) warn("the drive is encrypted by dm-crypt: each byte costs processor time");
  if (mapped("LVM"))
    warn("the directory lies on LVM: figures are those of the volume, not of one drive");
  if (device.rotational) warn(fmt::format("{} is a rotating disk", device.name));
  if (device.scheduler == "bfq" || device.scheduler == "kyber" || device.scheduler == "cfq") {
    warn(
        fmt::format("I/O scheduler {} costs time with fast drives; \"none\" is usual "
                    "(/sys/block/{}/queue/scheduler)",
                    device.scheduler, device.name));
  }
  if (!direct) warn("no direct I/O here: buffered I/O measures the page cache as well");
  if (free_share < 0.1)
    warn(fmt::format(
        "only {:.0f} % of the file system is free: flash slows down when it is nearly full",
        free_share * 100));
  if (device.celsius && *device.celsius > 70)
    warn(fmt::format("the drive is at {:.0f} degrees Celsius and may slow itself down",
                     *device.celsius));
  return warnings;
}

std::vector<std::string> directory_warnings(const std::string& directory) {
  const DirectoryFacts facts = probe_directory(directory);
  struct statvfs space {};
  double free_share = 1;
  if (::statvfs(directory.c_str(), &space) == 0 && space.f_blocks > 0) {
    free_share = static_cast<double>(space.f_bavail) / static_cast<double>(space.f_blocks);
  }
  auto warnings =
      device_warnings(device_of(directory), facts.file_system, facts.direct, free_share);
  if (chosen(line_of("/sys/kernel/mm/transparent_hugepage/enabled")) == "never") {
    warnings.push_back(
        "transparent huge pages are off: scattered 4 KiB pages can cost two thirds of the rate "
        "(/sys/kernel/mm/transparent_hugepage/enabled: madvise)");
  }
  return warnings;
}

}  // namespace zinf::nvme
