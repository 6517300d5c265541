// A device as the executor sees it: one memory arena of exact size and two copy lanes. `host/`
// plays a device in RAM; a CUDA device is a library of its own behind the same contract.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/bytes.h"

namespace zinf::gpu {

enum class CopyDirection { kHostToDevice, kDeviceToHost };

struct CopySegment {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  Bytes bytes = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual std::string name() const = 0;
  // The arena's start; 4 KiB aligned. Its size was fixed when the device was made.
  virtual std::byte* arena() = 0;
  virtual Bytes arena_bytes() const = 0;

  // Queues a copy; thread-safe, does not block. Copies of one direction run in order.
  // on_done(seconds busy) is called from the lane's thread and must not block.
  virtual void copy(CopyDirection direction, std::vector<CopySegment> segments,
                    std::function<void(double)> on_done) = 0;
};

struct HostDeviceOptions {
  Bytes arena_bytes = 0;
  double bytes_per_second =
      0;  // copies are slowed down to this rate, each way; 0: as fast as memory
};

// A device that lives in host memory: the same scheduling, budgets and copies without a GPU.
std::unique_ptr<Device> make_host_device(const HostDeviceOptions& options);

}  // namespace zinf::gpu
