// Faults as a fixture: an engine around any other that misbehaves as drives and kernels do,
// reproducibly by seed.
//
//   auto faults = std::make_shared<FaultControl>(FaultOptions{.seed = 7, .short_share = 0.2});
//   store_options.wrap_engine = faults->wrapper();
//   ...
//   faults->crash();             // from now on nothing reaches the drive; requests fail with EIO
//   (destroy the store)
//   faults->forget_unsynced();   // the drive loses a random part of what was written and not
//   synced (open the store again)
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "nvme/io_engine.h"

namespace zinf::nvme {

// Shares are probabilities per block, 0 to 1.
struct FaultOptions {
  std::uint64_t seed = 0;
  double short_share = 0;  // moves and reports fewer bytes, often not a multiple of the alignment
  double again_share = 0;  // fails with EAGAIN or EINTR, worth a retry
  double delay_share = 0;  // completes later than others that were issued after it
  double drop_share = 0;   // never completes
  double lose_share = 0;   // a write is reported done and never happens
  double flip_share = 0;   // a read gives back one wrong bit
  double error_share = 0;  // fails with error_number
  std::uint64_t fail_block =
      0;  // this block, counted from 1 over all engines, fails with error_number
  std::uint64_t crash_block = 0;  // at this block the machine dies: see crash()
  int error_number = 5;           // EIO
  bool track_unsynced = false;    // needed for forget_unsynced(); reads before each write
};

// Outlives the engines that it makes. Thread-safe.
class FaultControl : public std::enable_shared_from_this<FaultControl> {
 public:
  explicit FaultControl(FaultOptions options) : options_(options) {}

  EngineWrapper wrapper();
  void crash();
  // Call when no engine is left. Per 4 KiB sector the drive keeps the state after some of the
  // writes since the last sync, not necessarily the last one. Returns how many sectors went back.
  std::size_t forget_unsynced();

  std::uint64_t blocks() const;    // that were submitted
  std::uint64_t injected() const;  // faults, of any kind
  const FaultOptions& options() const { return options_; }

 private:
  friend class FaultEngine;
  struct Write {
    std::string path;
    std::uint64_t offset = 0;
    std::vector<std::byte> before;
    bool completed = false;
  };

  std::uint64_t next_block();
  bool crashed() const;
  void count_fault();
  std::uint64_t note_write(Write write);
  void complete_write(std::uint64_t id);
  std::vector<std::uint64_t> completed_writes(const std::string& path) const;
  void forget_writes(const std::vector<std::uint64_t>& ids);

  const FaultOptions options_;
  mutable std::mutex mutex_;
  std::uint64_t engines_ = 0;
  std::uint64_t blocks_ = 0;
  std::uint64_t injected_ = 0;
  std::uint64_t next_write_ = 0;
  bool crashed_ = false;
  std::map<std::uint64_t, Write> writes_;  // not yet synced, in order
};

}  // namespace zinf::nvme
