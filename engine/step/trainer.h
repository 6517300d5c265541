// The step loop's inside: segments in the right order, decisions at their borders. Knows nothing of
// files, logs or configuration; engine/train feeds it batches and learning rates.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "engine/step/executor.h"
#include "engine/step/op_runner.h"

namespace zinf::step {

struct StepResult {
  double loss = 0;       // mean over the step's target tokens
  double grad_norm = 0;  // before clipping
  double clip_factor = 1;
  bool finite = true;
  int first_bad_piece = -1;  // of a non-finite gradient; -1: the loss itself
};

// Whether pieces are updated during backward, before the norm is known, with clip factor 1 into the
// slot that does not hold the committed state. When the norm clips after all, the step is updated
// again from the untouched slot (a redo): the same bits, only later.
enum class Speculate {
  kNever,   // or the programs have no early updates
  kRarely,  // while clipping has been rare lately
  kAlways,  // nothing is clipped, or a test
};

// One run. Not thread-safe. The order per step s (1-based):
//   gradients(batch of s)  -> backward of s has run; its update waits
//   update(lr of s)        -> the update is queued; it runs beside the next gradients() call, or on
//   drain()
class Trainer {
 public:
  struct Options {
    double max_norm = 0;              // 0: no clipping
    std::uint64_t seed = 0;           // stochastic rounding
    std::int64_t version = 0;         // updates applied so far
    bool moments_are_zero = true;     // until the first update
    int slots = 2;                    // of mutable extents
    int slot = 0;                     // where the state is
    int committed_slot = 0;           // which slot must not be written
    bool commits_in_program = false;  // every update segment ends with a commit op
    Speculate speculate = Speculate::kNever;
  };
  // Everything outlives the trainer.
  Trainer(Executor& executor, OpRunner& runner, model::Compute& compute, const Options& options);

  // fp16: the loss of the steps to come is multiplied by it, and their gradients are divided by it
  // where they are used. 1 at first. Not between forward() and update().
  void set_loss_scale(double scale) { loss_scale_ = scale; }
  // Runs forward (with a queued update beside it) and backward. The batch must stay alive until the
  // next call of gradients() or drain() has returned. lr: what update() will be called with;
  // without it nothing is updated early.
  StepResult gradients(const data::StepBatch& batch, std::optional<double> lr = {});
  // The same in two halves.
  void forward(const data::StepBatch& batch);
  StepResult backward(std::optional<double> lr = {});
  // Queues the update for the gradients just computed. lr: of this step. step: what a commit of its
  // result is called; by default the number of updates.
  void update(double lr, std::int64_t step = -1);
  // Drops the gradients: the step changes nothing.
  void skip();
  // Applies a queued update and waits for everything: canonical state A. commits: as the program
  // does; false: the caller does, once what belongs to the step is written down (committed()).
  void drain(bool commits = true);

  struct Evaluation {
    double loss_sum = 0;
    std::int64_t target_tokens = 0;
  };
  // In state A. The batch may have any number of micro-batches, up to `group` of which share a
  // visit. Adds to `sum` in order: the groups change no bit. dropout_key: of a training step whose
  // loss is asked for (training_key()).
  void evaluate(const data::StepBatch& batch, int group, std::uint64_t dropout_key,
                Evaluation& sum);
  Evaluation evaluate(const data::StepBatch& batch, int group,
                      std::uint64_t dropout_key = model::kNoDropout) {
    Evaluation sum;
    evaluate(batch, group, dropout_key, sum);
    return sum;
  }
  // Of the next step to be trained.
  std::uint64_t training_key() const;
  // In state A. The first stage, in forward order, that makes a value which is not finite of the
  // batch of the next step to be trained; -1: none.
  int first_bad_stage(const data::StepBatch& batch, int group);
  // In state A. One micro-batch of one row: the most likely id after its last position.
  std::int32_t next_token(const data::StepBatch& batch);

  // The state is durable (in state A, after a sync and a manifest): its slot is kept from now on.
  void committed() {
    options_.committed_slot = options_.slot;
    begin_hold();
  }

  // Keeps the slot of the next commit unwritten until release(): from that commit on updates go in
  // place, in the other slot, and no program commits. hold() does so with the newest commit. Needs
  // two slots.
  void hold_next_commit() { hold_requested_ = true; }
  void hold();
  void release();
  bool held() const { return held_; }

  std::int64_t version() const { return options_.version; }
  int slot() const { return options_.slot; }
  bool moments_are_zero() const { return options_.moments_are_zero; }

  // Since the run's start: steps with early updates, and those of them that were updated again.
  std::int64_t speculated() const { return speculated_; }
  std::int64_t redone() const { return redone_; }

 private:
  SegmentArgs args_for(const data::StepBatch* batch) const;
  optim::StepScalars scalars_for(double lr, double clip_factor) const;
  bool may_speculate() const;
  void submit_update(bool beside_forward, const data::StepBatch* batch, bool commits);
  void begin_hold() {
    if (hold_requested_) hold();
  }
  Executor& executor_;
  OpRunner& runner_;
  model::Compute& compute_;
  Options options_;
  const data::StepBatch* gradient_batch_ = nullptr;  // whose gradients wait
  std::optional<optim::StepScalars> queued_;         // an update that has been decided
  std::int64_t queued_step_ = 0;
  double clip_factor_ = 1;
  std::optional<double> early_lr_;      // the waiting gradients' early pieces are updated with it
  bool early_accepted_ = false;         // of the queued update
  std::uint32_t clipped_lately_ = ~0u;  // bit i: i steps ago the norm clipped, or was not seen
  std::int64_t speculated_ = 0;
  std::int64_t redone_ = 0;
  double loss_scale_ = 1;
  bool hold_requested_ = false;
  bool held_ = false;
};

}  // namespace zinf::step
