#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "engine/base/clock.h"
#include "gpu/device.h"
#include "gpu/host_memory.h"

namespace zinf::gpu {

namespace {

// One direction's copies, in order, on one thread.
class CopyLane {
 public:
  explicit CopyLane(double bytes_per_second)
      : rate_(bytes_per_second), thread_([this] { run(); }) {}
  ~CopyLane() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  void submit(std::vector<CopySegment> segments, std::function<void(double)> on_done) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back({std::move(segments), std::move(on_done)});
    }
    wake_.notify_one();
  }

 private:
  struct Job {
    std::vector<CopySegment> segments;
    std::function<void(double)> on_done;
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      Job job = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      const double start = now_seconds();
      Bytes total = 0;
      for (const CopySegment& segment : job.segments) {
        std::memcpy(segment.to, segment.from, segment.bytes);
        total += segment.bytes;
      }
      double busy = now_seconds() - start;
      if (rate_ > 0 && busy < static_cast<double>(total) / rate_) {
        std::this_thread::sleep_for(
            std::chrono::duration<double>(static_cast<double>(total) / rate_ - busy));
        busy = now_seconds() - start;
      }
      job.on_done(busy);
      lock.lock();
    }
  }

  double rate_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> queue_;
  bool stop_ = false;
  std::thread thread_;
};

class HostDevice : public Device {
 public:
  explicit HostDevice(const HostDeviceOptions& options)
      : memory_(options.arena_bytes, "the device arena"),
        to_device_(options.bytes_per_second),
        to_host_(options.bytes_per_second) {}

  std::string name() const override { return "host memory"; }
  std::byte* arena() override { return memory_.data(); }
  Bytes arena_bytes() const override { return memory_.size(); }
  void copy(CopyDirection direction, std::vector<CopySegment> segments,
            std::function<void(double)> on_done) override {
    CopyLane& lane = direction == CopyDirection::kHostToDevice ? to_device_ : to_host_;
    lane.submit(std::move(segments), std::move(on_done));
  }

 private:
  HostMemory memory_;
  CopyLane to_device_;
  CopyLane to_host_;
};

}  // namespace

std::unique_ptr<Device> make_host_device(const HostDeviceOptions& options) {
  return std::make_unique<HostDevice>(options);
}

}  // namespace zinf::gpu
