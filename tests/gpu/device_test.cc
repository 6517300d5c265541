#include "gpu/device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <mutex>
#include <vector>

#include "engine/base/clock.h"

namespace zinf::gpu {
namespace {

TEST(HostDevice, CopiesBothWaysInSegments) {
  const auto device = make_host_device({64 * kKiB, 0});
  EXPECT_EQ(device->arena_bytes(), 64 * kKiB);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(device->arena()) % 4096, 0u);
  std::vector<std::byte> host(1000, std::byte{3}), back(1000);
  std::promise<double> in, out;
  device->copy(
      CopyDirection::kHostToDevice,
      {{device->arena(), host.data(), 400}, {device->arena() + 400, host.data() + 400, 600}},
      [&](double busy) { in.set_value(busy); });
  EXPECT_GE(in.get_future().get(), 0);
  device->copy(CopyDirection::kDeviceToHost, {{back.data(), device->arena(), 1000}},
               [&](double busy) { out.set_value(busy); });
  out.get_future().get();
  EXPECT_EQ(back, host);
}

// One direction keeps its order; callers come from any thread.
TEST(HostDevice, CopiesOfOneDirectionAreDoneInOrder) {
  const auto device = make_host_device({4096, 0});
  std::mutex mutex;
  std::vector<int> done;
  std::promise<void> last;
  std::vector<std::byte> from(64);
  for (int i = 0; i < 200; ++i) {
    device->copy(CopyDirection::kHostToDevice, {{device->arena(), from.data(), 64}},
                 [&, i](double) {
                   const std::lock_guard lock(mutex);
                   done.push_back(i);
                   if (i == 199) last.set_value();
                 });
  }
  last.get_future().get();
  const std::lock_guard lock(mutex);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(done[i], i);
}

// The two directions do not wait for each other: one side's copy ends while the other side's
// callback holds its lane.
TEST(HostDevice, DirectionsRunBesideEachOther) {
  const auto device = make_host_device({8192, 0});
  std::vector<std::byte> host(4096);
  std::promise<void> in, out;
  const std::shared_future<void> in_done = in.get_future().share();
  device->copy(CopyDirection::kDeviceToHost, {{host.data(), device->arena(), 4096}},
               [&, in_done](double) {
                 EXPECT_EQ(in_done.wait_for(std::chrono::seconds(60)), std::future_status::ready);
                 out.set_value();
               });
  device->copy(CopyDirection::kHostToDevice, {{device->arena() + 4096, host.data(), 0}},
               [&](double) { in.set_value(); });
  EXPECT_EQ(out.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
}

TEST(HostDevice, AThrottledCopyTakesAtLeastItsTime) {
  const auto device = make_host_device({64 * kKiB, 1e6});
  std::vector<std::byte> host(20000);
  std::promise<double> done;
  const double start = now_seconds();
  device->copy(CopyDirection::kHostToDevice, {{device->arena(), host.data(), host.size()}},
               [&](double busy) { done.set_value(busy); });
  EXPECT_GE(done.get_future().get(), 0.02 * 0.99);
  EXPECT_GE(now_seconds() - start, 0.02 * 0.99);
}

// What was queued is done before the device is gone.
TEST(HostDevice, EndsWithItsQueueEmpty) {
  std::atomic<int> done{0};
  std::vector<std::byte> host(64);
  {
    const auto device = make_host_device({4096, 0});
    for (int i = 0; i < 50; ++i) {
      device->copy(CopyDirection::kHostToDevice, {{device->arena(), host.data(), 64}},
                   [&](double) { ++done; });
    }
  }
  EXPECT_EQ(done, 50);
}

}  // namespace
}  // namespace zinf::gpu
