// Who keeps the newest commit from being overwritten, seen from the step loop: the keeper's copy
// and commands that read the state. While one of them does, steps write in place in the other slot
// and nothing is committed.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>

#include "engine/config/training_sections.h"
#include "engine/step/trainer.h"
#include "engine/train/keeper.h"
#include "engine/train/read_hold.h"

namespace zinf::train {

struct HoldsParts {
  step::Trainer* trainer = nullptr;
  step::Executor* executor = nullptr;
  Keeper* keeper = nullptr;           // null: nothing is kept
  ReadHoldServer* readers = nullptr;  // null: nobody can read (one slot)
  config::Cadence keep_every;
  bool commits_in_program = false;
  std::optional<std::int64_t> last_commit;  // when the loop starts
};

// Used by the step loop's thread, between segments.
class Holds {
 public:
  explicit Holds(const HoldsParts& parts);

  // After a step's update is queued. true: the step is to be kept, so it has to be committed; its
  // commit begins the hold. Waits when a copy is still under way. last: the live state keeps that
  // step.
  bool step_done(std::int64_t step, bool finite, bool last);
  // A copy that failed. The loop commits, which release() allows again, and then throws it.
  std::exception_ptr failure() const { return failure_; }
  bool held() const { return parts_.trainer->held(); }
  void committed(std::int64_t step) { parts_.last_commit = step; }
  // Before the commit that ends the run: waits for the copy under way, or gives it up when
  // interrupted.
  void settle(bool interrupted);

 private:
  bool due(std::int64_t step);
  void collect();
  void mind_readers(std::int64_t step, bool finite);
  void release_if_free();

  HoldsParts parts_;
  bool owed_ = false;  // a copy is due, but readers hold an older commit
  bool reader_ = false;
  double last_kept_ = 0;
  std::exception_ptr failure_;
};

}  // namespace zinf::train
