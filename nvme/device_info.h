// What sysfs tells of the drive behind a directory, and what of it should worry a user who tunes
// it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/base/bytes.h"

namespace zinf::nvme {

struct DeviceInfo {
  // "nvme0n1", "vda"; empty where there is no block device (tmpfs, network). "dm-0" or "md0" only
  // where it lies on several.
  std::string name{};
  std::string model{};  // may be empty
  std::string link{};   // "8.0 GT/s PCIe x4"; may be empty
  std::string scheduler{};
  std::string write_cache{};    // "write back", "write through"
  std::string device_mapper{};  // from the top down: "LVM CRYPT"; empty: none
  Bytes logical_block = 0;
  Bytes physical_block = 0;
  Bytes largest_request = 0;  // max_sectors_kb
  bool rotational = false;
  std::optional<double> celsius{};
};

// `sysfs` is replaced in tests. Missing files leave fields empty.
DeviceInfo device_of(const std::string& directory, const std::string& sysfs = "/sys");

// One line each; empty when all is well. `free_share`: free of all space, 0 to 1.
std::vector<std::string> device_warnings(const DeviceInfo& device, const std::string& file_system,
                                         bool direct, double free_share);
// The same with everything asked from the machine, huge pages included.
std::vector<std::string> directory_warnings(const std::string& directory);

}  // namespace zinf::nvme
