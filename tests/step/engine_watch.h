// An engine around the real one that counts what is in flight, for programs that run on real files:
// never more blocks than the lane's depth, and no write before a read that was there to be issued.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "engine/base/str.h"
#include "nvme/io_lane.h"

namespace zinf::testing {

// Outlives the engines that it makes. Thread-safe.
class EngineWatch {
 public:
  explicit EngineWatch(int depth) : depth_(depth) {}

  nvme::EngineWrapper wrapper() {
    return [this](std::unique_ptr<nvme::IoEngine> engine) {
      return std::make_unique<Watched>(*this, std::move(engine));
    };
  }
  // The first thing that was wrong; empty: nothing was.
  std::string problem() const {
    const std::lock_guard lock(mutex_);
    return problem_;
  }
  int most_in_flight() const {
    const std::lock_guard lock(mutex_);
    return most_;
  }

 private:
  class Watched final : public nvme::IoEngine {
   public:
    Watched(EngineWatch& watch, std::unique_ptr<nvme::IoEngine> inner)
        : watch_(watch), inner_(std::move(inner)) {}
    std::string_view name() const override { return inner_->name(); }
    nvme::EngineLimits limits() const override { return inner_->limits(); }
    int add_file(int descriptor) override { return inner_->add_file(descriptor); }
    Bytes add_memory(std::span<std::byte> memory) override { return inner_->add_memory(memory); }
    int in_flight() const override { return inner_->in_flight(); }
    void wake() override { inner_->wake(); }

    std::size_t submit(std::span<const nvme::IoBlock> blocks) override {
      // A block that the kernel did not take, or moved in part, comes again: its turn is over.
      std::size_t last_read = 0;
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        if (blocks[i].op == nvme::IoOp::kRead && !open_.count(blocks[i].tag)) last_read = i;
      }
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        const bool read = blocks[i].op == nvme::IoOp::kRead;
        if (!open_.emplace(blocks[i].tag, blocks[i].bytes).second) continue;
        if (!read && i < last_read && reads_in_a_row_ < nvme::IoLane::kReadsPerWrite)
          watch_.note(0, "a write went before a read that waited");
        reads_in_a_row_ = read ? reads_in_a_row_ + 1 : 0;
      }
      watch_.note(static_cast<int>(open_.size()), "");
      return inner_->submit(blocks);
    }

    std::size_t reap(std::span<nvme::IoCompletion> out, double timeout_seconds) override {
      const std::size_t count = inner_->reap(out, timeout_seconds);
      for (std::size_t i = 0; i < count; ++i) {
        const auto block = open_.find(out[i].tag);
        if (block != open_.end() && out[i].result == static_cast<std::int64_t>(block->second))
          open_.erase(block);
      }
      return count;
    }

   private:
    EngineWatch& watch_;
    std::unique_ptr<nvme::IoEngine> inner_;
    std::map<std::uint64_t, Bytes> open_;  // blocks by tag: issued and not yet wholly moved
    int reads_in_a_row_ = 0;
  };

  void note(int in_flight, const std::string& problem) {
    const std::lock_guard lock(mutex_);
    most_ = std::max(most_, in_flight);
    if (!problem_.empty()) return;
    problem_ = in_flight > depth_ ? str(in_flight, " blocks in flight at depth ", depth_) : problem;
  }

  const int depth_;
  mutable std::mutex mutex_;
  std::string problem_;
  int most_ = 0;
};

}  // namespace zinf::testing
