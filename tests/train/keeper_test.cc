// The copy of a kept checkpoint is slowed down to what it was told, and hurries when it is waited
// for.
#include "engine/train/keeper.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>

#include "engine/base/error.h"
#include "nvme/area_header.h"
#include "tests/step/temp_folder.h"

namespace zinf::train {
namespace {

constexpr Bytes kBytes = 64 * kMiB;

class KeeperTest : public ::testing::Test {
 protected:
  KeeperTest() {
    manifest_.step = 3;
    manifest_.area = "run-0123456789ab";
    manifest_.drives = {drive_.path()};
    const std::string bytes(nvme::kAreaDataStart + kBytes, 'x');
    std::ofstream(drive_.path() + "/" + manifest_.area + ".zinf-area", std::ios::binary) << bytes;
  }

  KeeperOptions options(double bytes_per_second) const {
    KeeperOptions options;
    options.run_folder = run_.path();
    options.bytes_per_second = bytes_per_second;
    options.ranges[0] = {{0, nvme::kAreaDataStart, kBytes}};
    return options;
  }

  std::vector<std::int64_t> kept() const {
    return checkpoint::KeptCheckpoints(run_.path()).steps();
  }

  // In memory, which no file system shares by reference.
  testing::TempFolder drive_{"/dev/shm"}, run_;
  checkpoint::Manifest manifest_;
};

// An unthrottled copy of these bytes is done in a small part of this time; the throttled one in
// no time that a test can take, however slow the machine.
TEST_F(KeeperTest, TakesTheTimeThatItsRateAsksForUnlessItIsWaitedFor) {
  Keeper keeper(options(1));
  keeper.request(3);
  keeper.published(manifest_, "pages");
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  while (std::chrono::steady_clock::now() < end) {
    ASSERT_FALSE(keeper.collect());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(keeper.busy());
  EXPECT_TRUE(kept().empty());
  keeper.wait();
  EXPECT_EQ(kept(), (std::vector<std::int64_t>{3}));
}

TEST_F(KeeperTest, GivesUpInTheMiddleOfASlowCopy) {
  Keeper keeper(options(1));
  keeper.request(3);
  keeper.published(manifest_, "pages");
  keeper.abandon();
  EXPECT_FALSE(keeper.busy());
  EXPECT_TRUE(kept().empty());
}

// An export may take longer than a stopping run has.
TEST_F(KeeperTest, GivesUpWhatComesAfterACopy) {
  KeeperOptions with_export = options(0);
  bool given_up = false;
  with_export.after = [&](std::int64_t step, const std::atomic<bool>& give_up) {
    EXPECT_EQ(step, 3);
    while (!give_up) std::this_thread::yield();
    given_up = true;
    throw Error(ErrorKind::kFailed, "given up");
  };
  Keeper keeper(with_export);
  keeper.request(3);
  keeper.published(manifest_, "pages");
  while (!keeper.collect()) std::this_thread::yield();
  EXPECT_FALSE(keeper.busy()) << "commits go on meanwhile";
  keeper.abandon();
  EXPECT_TRUE(given_up);
  EXPECT_EQ(kept(), (std::vector<std::int64_t>{3}));
}

TEST_F(KeeperTest, WithoutARateNothingIsWaitedFor) {
  Keeper keeper(options(0));
  keeper.request(3);
  keeper.published(manifest_, "pages");
  while (!keeper.collect()) std::this_thread::yield();
  EXPECT_EQ(kept(), (std::vector<std::int64_t>{3}));
}

}  // namespace
}  // namespace zinf::train
