// Drives of a given speed, exactly: a real engine moves each block, which then takes the time that
// its drive's rate says on a clock that nothing else moves.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "nvme/io_engine.h"

namespace zinf::nvme {

struct PacedDrive {
  std::string folder;  // its files are the drive's
  double read_bytes_per_second = 0;
  double write_bytes_per_second = 0;
  double busy_seconds = 0;  // so far
  // So many bytes are written faster: a write cache that nothing empties.
  std::int64_t cache_bytes = 0;
  double cached_bytes_per_second = 0;
};

// Outlives the engines. Thread-safe.
class PacedDrives {
 public:
  explicit PacedDrives(std::vector<PacedDrive> drives) : drives_(std::move(drives)) {}

  EngineWrapper wrapper();
  // The drives' times together: for one that works while the others stand still.
  std::function<double()> clock() {
    return [this] {
      double sum = 0;
      for (const PacedDrive& drive : drives()) sum += drive.busy_seconds;
      return sum;
    };
  }
  std::vector<PacedDrive> drives() const {
    const std::lock_guard lock(mutex_);
    return drives_;
  }

  std::size_t drive_of(int descriptor) const {
    const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
    const std::string file = std::filesystem::read_symlink(link).string();
    const auto drive = std::find_if(drives_.begin(), drives_.end(), [&](const PacedDrive& d) {
      return file.starts_with(d.folder + "/");
    });
    ZINF_CHECK(drive != drives_.end(), "a file of no paced drive: " + file);
    return static_cast<std::size_t>(drive - drives_.begin());
  }
  void moved(std::size_t drive, IoOp op, std::int64_t bytes) {
    const std::lock_guard lock(mutex_);
    PacedDrive& d = drives_[drive];
    const bool write = op == IoOp::kWrite;
    const double rate = !write              ? d.read_bytes_per_second
                        : d.cache_bytes > 0 ? d.cached_bytes_per_second
                                            : d.write_bytes_per_second;
    if (bytes > 0) d.busy_seconds += static_cast<double>(bytes) / rate;
    if (bytes > 0 && write) d.cache_bytes -= bytes;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<PacedDrive> drives_;
};

class PacedEngine final : public IoEngine {
 public:
  PacedEngine(PacedDrives& drives, std::unique_ptr<IoEngine> engine)
      : drives_(drives), engine_(std::move(engine)) {}

  std::string_view name() const override { return engine_->name(); }
  EngineLimits limits() const override { return engine_->limits(); }
  int add_file(int descriptor) override {
    const int file = engine_->add_file(descriptor);
    drive_of_[file] = drives_.drive_of(descriptor);
    return file;
  }
  Bytes add_memory(std::span<std::byte> memory) override { return engine_->add_memory(memory); }
  std::size_t submit(std::span<const IoBlock> blocks) override {
    const std::size_t taken = engine_->submit(blocks);
    for (const IoBlock& block : blocks.first(taken)) waiting_[block.tag] = {block.op, block.file};
    return taken;
  }
  std::size_t reap(std::span<IoCompletion> out, double timeout_seconds) override {
    const std::size_t count = engine_->reap(out, timeout_seconds);
    for (const IoCompletion& done : out.first(count)) {
      const auto [op, file] = waiting_.at(done.tag);
      drives_.moved(drive_of_.at(file), op, op == IoOp::kSync ? 0 : done.result);
    }
    return count;
  }
  int in_flight() const override { return engine_->in_flight(); }
  void wake() override { engine_->wake(); }

 private:
  PacedDrives& drives_;
  std::unique_ptr<IoEngine> engine_;
  std::unordered_map<int, std::size_t> drive_of_;
  std::unordered_map<std::uint64_t, std::pair<IoOp, int>> waiting_;
};

inline EngineWrapper PacedDrives::wrapper() {
  return [this](std::unique_ptr<IoEngine> engine) {
    return std::make_unique<PacedEngine>(*this, std::move(engine));
  };
}

}  // namespace zinf::nvme
