#include "engine/step/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cpu_optim/norm.h"
#include "engine/base/error.h"

namespace zinf::step {

using plan::Segment;

Trainer::Trainer(Executor& executor, OpRunner& runner, model::Compute& compute,
                 const Options& options)
    : executor_(executor), runner_(runner), compute_(compute), options_(options) {}

SegmentArgs Trainer::args_for(const data::StepBatch* batch) const {
  SegmentArgs args;
  args.batch = batch;
  args.row_batch = batch;
  args.version = options_.version;
  args.read_slot = args.write_slot = options_.slot;
  return args;
}

optim::StepScalars Trainer::scalars_for(double lr, double clip_factor) const {
  optim::StepScalars scalars;
  scalars.step = options_.version + 1;
  scalars.lr = lr;
  scalars.gradient_factor = clip_factor / loss_scale_;
  scalars.seed = options_.seed;
  scalars.moments_are_zero = options_.moments_are_zero;
  return scalars;
}

// An early update must leave the state as it is, should it be redone or dropped: it needs a slot
// that is neither the state's nor the last commit's. And a redo costs the early pieces' traffic
// once more: worth the risk while none of the last eight steps clipped.
bool Trainer::may_speculate() const {
  constexpr std::uint32_t kLately = 0xFF;
  if (options_.speculate == Speculate::kNever || options_.slots != 2 ||
      options_.slot != options_.committed_slot ||
      executor_.programs().program(Segment::kBackwardEarly).ops.empty())
    return false;
  return options_.speculate == Speculate::kAlways || (clipped_lately_ & kLately) == 0;
}

// Writes go to the slot that does not hold the last commit; between commits they go in place.
void Trainer::submit_update(bool beside_forward, const data::StepBatch* batch, bool commits) {
  const Segment segment = early_accepted_
                              ? (beside_forward ? Segment::kRestForward : Segment::kRestOnly)
                              : (beside_forward ? Segment::kUpdateForward : Segment::kUpdateOnly);
  SegmentArgs args = args_for(batch);
  args.scalars = *queued_;
  args.version = options_.version + 1;
  args.step = queued_step_;
  args.commits = commits && !held_;
  if (options_.slots == 2 && options_.slot == options_.committed_slot)
    args.write_slot = 1 - options_.slot;
  executor_.submit(segment, args);
  queued_.reset();
  early_accepted_ = false;
  options_.slot = args.write_slot;
  if (options_.commits_in_program && args.commits) {
    options_.committed_slot = options_.slot;
    begin_hold();
  }
  ++options_.version;
  options_.moments_are_zero = false;
}

void Trainer::hold() {
  ZINF_CHECK(options_.slots == 2, "a hold needs a second slot to write to");
  hold_requested_ = false;
  held_ = true;
}

void Trainer::release() { held_ = hold_requested_ = false; }

StepResult Trainer::gradients(const data::StepBatch& batch, std::optional<double> lr) {
  forward(batch);
  return backward(lr);
}

std::uint64_t Trainer::training_key() const {
  // Updates before the step, whether or not the last one has been submitted yet.
  const auto updates = static_cast<std::uint64_t>(options_.version + (queued_ ? 1 : 0));
  return model::dropout_step_key(options_.seed, updates);
}

void Trainer::forward(const data::StepBatch& batch) {
  ZINF_CHECK(gradient_batch_ == nullptr || queued_.has_value(),
             "the gradients before were updated or skipped");
  compute_.begin_step(batch, loss_scale_, training_key());
  if (queued_) {
    submit_update(/*beside_forward=*/true, &batch, /*commits=*/true);
  } else {
    executor_.submit(Segment::kForward, args_for(&batch));
  }
  gradient_batch_ = &batch;
}

StepResult Trainer::backward(std::optional<double> lr) {
  ZINF_CHECK(gradient_batch_ != nullptr && !queued_, "a forward has been run");
  const data::StepBatch& batch = *gradient_batch_;
  runner_.reset_norm();
  early_lr_.reset();
  SegmentArgs args = args_for(&batch);
  if (lr && may_speculate()) {
    early_lr_ = lr;
    ++speculated_;
    args.scalars = scalars_for(*lr, 1.0);
    args.write_slot = 1 - options_.slot;
    executor_.submit(Segment::kBackwardEarly, args);
  } else {
    executor_.submit(Segment::kBackward, args);
  }
  executor_.wait_decision();

  StepResult result;
  double sum = 0;
  for (std::size_t m = 0; m < batch.micro_batches.size(); ++m)
    sum += compute_.loss_sum(static_cast<int>(m));
  result.loss = sum / static_cast<double>(batch.target_tokens);
  const OpRunner::Norm norm = runner_.norm();
  result.grad_norm = norm.value / loss_scale_;
  result.finite = norm.finite && std::isfinite(result.loss);
  result.first_bad_piece = norm.first_bad_piece;
  result.clip_factor = options_.max_norm > 0 && result.finite
                           ? optim::clip_factor(result.grad_norm, options_.max_norm)
                           : 1.0;
  clip_factor_ = result.clip_factor;
  clipped_lately_ = clipped_lately_ << 1 | (clip_factor_ != 1.0 || !result.finite ? 1u : 0u);
  return result;
}

void Trainer::update(double lr, std::int64_t step) {
  ZINF_CHECK(gradient_batch_ != nullptr && !queued_, "there are gradients to update with");
  if (runner_.trainable_elements() == 0) {
    throw Error(ErrorKind::kUsage, "the update would change no parameter: none is trainable",
                "an update that changes nothing is not training");
  }
  queued_ = scalars_for(lr, clip_factor_);
  queued_step_ = step >= 0 ? step : options_.version + 1;
  early_accepted_ = early_lr_ == lr && clip_factor_ == 1.0;
  redone_ += early_lr_.has_value() && !early_accepted_;
  early_lr_.reset();
}

void Trainer::skip() {
  executor_.wait_all();
  gradient_batch_ = nullptr;
  queued_.reset();
  early_lr_.reset();  // what was written early lies in a slot that holds nothing
  early_accepted_ = false;
}

void Trainer::drain(bool commits) {
  if (queued_) submit_update(/*beside_forward=*/false, gradient_batch_, commits);
  executor_.wait_all();
  gradient_batch_ = nullptr;
}

void Trainer::evaluate(const data::StepBatch& batch, int group, std::uint64_t dropout_key,
                       Evaluation& sum) {
  ZINF_CHECK(gradient_batch_ == nullptr, "evaluation starts drained");
  for (std::size_t first = 0; first < batch.micro_batches.size();
       first += static_cast<std::size_t>(group)) {
    data::StepBatch part;
    part.first_micro_batch = static_cast<int>(first);
    const std::size_t last =
        std::min(batch.micro_batches.size(), first + static_cast<std::size_t>(group));
    for (std::size_t m = first; m < last; ++m) {
      part.micro_batches.push_back(batch.micro_batches[m]);
      part.tokens += batch.micro_batches[m].tokens;
      part.target_tokens += batch.micro_batches[m].target_tokens;
    }
    compute_.begin_step(part, 1.0, dropout_key);
    executor_.submit(Segment::kEvaluate, args_for(&part));
    executor_.wait_all();
    for (std::size_t m = first; m < last; ++m)
      sum.loss_sum += compute_.loss_sum(static_cast<int>(m - first));
    sum.target_tokens += part.target_tokens;
  }
}

int Trainer::first_bad_stage(const data::StepBatch& batch, int group) {
  runner_.look_for_non_finite(&executor_.device());
  const Evaluation evaluation = evaluate(batch, group, training_key());
  runner_.look_for_non_finite(nullptr);
  if (runner_.first_bad_stage() >= 0 || std::isfinite(evaluation.loss_sum))
    return runner_.first_bad_stage();
  return static_cast<int>(runner_.model().stages.size()) - 1;  // the head, whose output is the loss
}

std::int32_t Trainer::next_token(const data::StepBatch& batch) {
  ZINF_CHECK(gradient_batch_ == nullptr, "sampling starts drained");
  compute_.begin_step(batch, 1.0, model::kNoDropout);
  SegmentArgs args = args_for(&batch);
  args.next_token = true;
  executor_.submit(Segment::kEvaluate, args);
  executor_.wait_all();
  return compute_.next_token();
}

}  // namespace zinf::step
