#include "nvme/device_info.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <fstream>

#include "tests/nvme/test_support.h"

namespace zinf::nvme {
namespace {

namespace fs = std::filesystem;

void put(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text << "\n";
}

// A sysfs with an NVMe drive whose first partition holds the directory.
TEST(DeviceInfo, ReadsTheDriveBehindAPartition) {
  TestDirectory directory;
  struct stat info {};
  ASSERT_EQ(::stat(directory.path().c_str(), &info), 0);
  const fs::path sys = directory.path() + "/sys", drive = sys / "devices/pci/nvme0/nvme0n1";
  put(drive / "nvme0n1p1/partition", "1");
  put(drive / "queue/scheduler", "[none] mq-deadline");
  put(drive / "queue/write_cache", "write through");
  put(drive / "queue/logical_block_size", "512");
  put(drive / "queue/physical_block_size", "4096");
  put(drive / "queue/max_sectors_kb", "128");
  put(drive / "queue/rotational", "0");
  put(sys / "devices/pci/nvme0/model", "Fast Drive 2TB          ");
  put(sys / "devices/pci/nvme0/hwmon1/temp1_input", "41850");
  put(sys / "devices/pci/current_link_speed", "16.0 GT/s PCIe");
  put(sys / "devices/pci/current_link_width", "4");
  fs::create_directory_symlink("../", drive / "device");
  fs::create_directory_symlink("../", sys / "devices/pci/nvme0/device");
  fs::create_directories(sys / "dev/block");
  fs::create_directory_symlink(drive / "nvme0n1p1", sys / "dev/block" /
                                                        (std::to_string(major(info.st_dev)) + ":" +
                                                         std::to_string(minor(info.st_dev))));
  const DeviceInfo device = device_of(directory.path(), sys.string());
  EXPECT_EQ(device.name, "nvme0n1");
  EXPECT_EQ(device.model, "Fast Drive 2TB");
  EXPECT_EQ(device.link, "16.0 GT/s PCIe x4");
  EXPECT_EQ(device.scheduler, "none");
  EXPECT_EQ(device.write_cache, "write through");
  EXPECT_EQ(device.logical_block, 512u);
  EXPECT_EQ(device.physical_block, 4096u);
  EXPECT_EQ(device.largest_request, 128 * kKiB);
  EXPECT_FALSE(device.rotational);
  ASSERT_TRUE(device.celsius.has_value());
  EXPECT_DOUBLE_EQ(*device.celsius, 41.85);
  EXPECT_TRUE(device_warnings(device, "ext4", true, 0.5).empty());
}

// A logical volume on an encrypted partition, then one that a second drive joins.
TEST(DeviceInfo, LooksThroughTheDeviceMapper) {
  TestDirectory directory;
  struct stat info {};
  ASSERT_EQ(::stat(directory.path().c_str(), &info), 0);
  const fs::path sys = directory.path() + "/sys", devices = sys / "devices";
  put(devices / "nvme0n1/nvme0n1p1/partition", "1");
  put(devices / "nvme0n1/queue/scheduler", "none [bfq]");
  put(devices / "nvme0n1/device/model", "Fast Drive 2TB");
  put(devices / "dm-0/dm/uuid", "CRYPT-LUKS2-0123");
  put(devices / "dm-1/dm/uuid", "LVM-4567");
  const auto link = [](const fs::path& to, const fs::path& at) {
    fs::create_directories(at.parent_path());
    fs::create_directory_symlink(to, at);
  };
  link(devices / "nvme0n1/nvme0n1p1", devices / "dm-0/slaves/nvme0n1p1");
  link(devices / "dm-0", devices / "dm-1/slaves/dm-0");
  link(devices / "dm-1",
       sys / "dev/block" /
           (std::to_string(major(info.st_dev)) + ":" + std::to_string(minor(info.st_dev))));
  const DeviceInfo device = device_of(directory.path(), sys.string());
  EXPECT_EQ(device.name, "nvme0n1");
  EXPECT_EQ(device.model, "Fast Drive 2TB");
  EXPECT_EQ(device.scheduler, "bfq");
  EXPECT_EQ(device.device_mapper, "LVM CRYPT");
  EXPECT_EQ(device_warnings(device, "ext4", true, 0.5).size(), 3u);

  put(devices / "sda/queue/scheduler", "none");
  link(devices / "sda", devices / "dm-1/slaves/sda");
  const DeviceInfo several = device_of(directory.path(), sys.string());
  EXPECT_EQ(several.name, "dm-1");
  EXPECT_EQ(several.device_mapper, "LVM");
}

TEST(DeviceInfo, IsEmptyWithoutABlockDevice) {
  TestDirectory directory;
  EXPECT_EQ(device_of(directory.path(), directory.path()).name, "");
  EXPECT_EQ(device_of(directory.path() + "/none").name, "");
}

TEST(DeviceWarnings, NameEachReasonForConcern) {
  const auto text = [](const DeviceInfo& device, const char* file_system, bool direct = true,
                       double free = 0.5) {
    std::string all;
    for (const std::string& line : device_warnings(device, file_system, direct, free))
      all += line + "\n";
    return all;
  };
  EXPECT_EQ(text({}, "xfs"), "");
  EXPECT_NE(text({}, "tmpfs").find("tmpfs is memory, not a drive"), std::string::npos);
  EXPECT_NE(text({}, "overlay").find("overlay is a container's own layer"), std::string::npos);
  EXPECT_NE(text({}, "nfs").find("nfs is a network"), std::string::npos);
  EXPECT_NE(text({}, "btrfs").find("btrfs copies on write"), std::string::npos);
  EXPECT_NE(text({}, "zfs").find("zfs copies on write"), std::string::npos);
  EXPECT_NE(text({.device_mapper = "CRYPT"}, "ext4").find("dm-crypt"), std::string::npos);
  EXPECT_NE(text({.device_mapper = "LVM"}, "ext4").find("LVM"), std::string::npos);
  EXPECT_NE(text({.name = "sda", .rotational = true}, "ext4").find("sda is a rotating disk"),
            std::string::npos);
  EXPECT_NE(text({.name = "sda", .scheduler = "bfq"}, "ext4").find("I/O scheduler bfq"),
            std::string::npos);
  EXPECT_NE(text({}, "ext4", false).find("no direct I/O here"), std::string::npos);
  EXPECT_NE(text({}, "ext4", true, 0.05).find("only 5 % of the file system is free"),
            std::string::npos);
  EXPECT_NE(text({.celsius = 81}, "ext4").find("81 degrees"), std::string::npos);
}

}  // namespace
}  // namespace zinf::nvme
