#include "nvme/uring_probe.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <fstream>

#include "engine/base/str.h"
#include "nvme/device_info.h"
#include "nvme/io_engine.h"
#include "tests/nvme/sandbox.h"
#include "tests/nvme/test_support.h"

namespace zinf::nvme {
namespace {

TEST(UringProbe, TellsOfEachFeatureWhetherItWorks) {
  const auto features = uring_features();
  if (!why_unavailable(EngineKind::kIoUring, 4).empty()) return;
  ASSERT_EQ(features.size(), 4u);
  for (const UringFeature& feature : features) EXPECT_FALSE(feature.name.empty());
  EXPECT_EQ(features[1].refusal, "");  // registered files: as old as the ring itself
}

TEST(UringProbe, SaysNothingOfARingThatIsRefused) {
  EXPECT_EQ(in_child([] {
              refuse_system_call(__NR_io_uring_setup, EPERM);
              return std::to_string(uring_features().size());
            }),
            "0");
}

TEST(UringProbe, NamesWhatIsRefused) {
  EXPECT_EQ(
      in_child([]() -> std::string {
        refuse_system_call(__NR_io_uring_register, ENOMEM);
        std::string text;
        for (const UringFeature& feature : uring_features())
          text += feature.refusal.empty() ? "" : str(feature.name, ": ", feature.refusal, "; ");
        return text.find("registered buffers: Cannot allocate memory (ENOMEM)") == std::string::npos
                   ? text
                   : "";
      }),
      "");
}

TEST(UringProbe, TriesWhetherTheLimitOfLockedMemoryBinds) {
  if (!why_unavailable(EngineKind::kIoUring, 4).empty()) return;
  const auto refusal = [](bool keeps_its_rights) {
    return in_child([&] {
      set_limit(RLIMIT_MEMLOCK, 64 * kKiB);
      if (!keeps_its_rights) become_nobody();
      return registration_refusal(kMiB);
    });
  };
  EXPECT_EQ(refusal(false), "Cannot allocate memory (ENOMEM)");
  if (may_exceed_locked_memory()) {
    EXPECT_EQ(refusal(true), "");
  }
}

// A sysfs in which the drive of the folder has the given io_poll.
std::string refusal_with(const std::string& directory, const char* polls) {
  const std::string device = device_of(directory).name;
  if (device.empty()) return "no drive";
  namespace fs = std::filesystem;
  TestDirectory sysfs;
  fs::create_directories(sysfs.path() + "/block/" + device + "/queue");
  fs::create_directory_symlink("/sys/dev", sysfs.path() + "/dev");
  std::ofstream(sysfs.path() + "/block/" + device + "/queue/io_poll") << polls;
  return polling_refusal(directory, sysfs.path());
}

TEST(PollingProbe, AsksTheDriveAndThenTries) {
  TestDirectory directory("/var/tmp");
  EXPECT_NE(refusal_with(directory.path(), "0\n").find("no "), std::string::npos);
  // Where the drive claims to poll a read is tried; it works or gives an errno, and leaves nothing.
  refusal_with(directory.path(), "1\n");
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  EXPECT_EQ(polling_refusal("/proc"), "no block device");
}

}  // namespace
}  // namespace zinf::nvme
