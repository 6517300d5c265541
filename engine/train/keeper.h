// Keeps copies of commits while training goes on. The step loop asks for the next commit to be kept
// and holds it (step::Trainer::hold_next_commit); once it is published a thread copies it, slowly
// enough to leave the drives to the steps. Nothing is committed until the loop has collected the
// copy.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/checkpoint/kept.h"

namespace zinf::train {

struct KeeperOptions {
  std::string run_folder;
  std::int64_t count = 1;                              // how many older commits are kept
  std::vector<nvme::AreaOwner> owners;                 // the run's
  double bytes_per_second = 0;                         // throttle; 0: none
  std::array<std::vector<nvme::FileRange>, 2> ranges;  // where the bytes of each slot lie
  // Called in the keeper's thread after a copy is whole and no longer holds anything (export). May
  // be empty. Throws soon after give_up has become true.
  std::function<void(std::int64_t step, const std::atomic<bool>& give_up)> after;
};

// request(), collect(), wait() and abandon() come from the step loop's thread, published() from
// any.
class Keeper {
 public:
  explicit Keeper(KeeperOptions options);
  ~Keeper();  // gives up a copy under way

  // The commit of this step, not yet published, is to be copied. Not while busy().
  void request(std::int64_t step);
  // Of every commit: starts the copy when it was asked for.
  void published(const checkpoint::Manifest& manifest, const std::string& pages);

  // From request() until collect(), wait() or abandon() has said that the copy is over.
  bool busy() const { return busy_; }
  // While busy(): the step, and whether its commit has been published.
  std::int64_t step() const { return step_; }
  bool started() const;
  // true, once per copy: it is whole, or has failed (throws what went wrong; nothing is left of
  // it). false: still under way, or none.
  bool collect();
  // Waits for the copy under way, at full speed, and for what comes after it. Throws as collect().
  void wait();
  // Gives up the copy under way, nothing is left of it, or what comes after one.
  void abandon();

 private:
  void copy(const checkpoint::Manifest& manifest, const std::string& pages);
  void drop(std::int64_t step) const;
  bool pace(Bytes done, double start);

  const KeeperOptions options_;
  const checkpoint::KeptCheckpoints kept_;
  bool busy_ = false;
  std::int64_t step_ = 0;
  mutable std::mutex mutex_;
  std::optional<std::int64_t> requested_;  // the rest under the mutex
  bool started_ = false;
  bool copied_ = false;
  std::exception_ptr failure_;
  std::atomic<bool> give_up_{false}, hurry_{false};
  std::jthread thread_;
};

}  // namespace zinf::train
