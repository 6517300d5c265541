#include "engine/train/steps.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <utility>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/machine.h"
#include "engine/base/signals.h"
#include "engine/base/str.h"
#include "engine/observe/metrics.h"
#include "engine/observe/progress.h"
#include "engine/observe/slow_lane.h"
#include "engine/observe/status.h"
#include "engine/observe/tensorboard.h"
#include "engine/observe/trace.h"
#include "engine/plan/simulate.h"

namespace zinf::train {

namespace {

using observe::Lane;

// The observe room's lane for one of the executor's; commits are not shown.
std::optional<Lane> shown_lane(plan::Lane lane) {
  switch (lane) {
    case plan::Lane::kCompute:
      return Lane::kCompute;
    case plan::Lane::kH2D:
      return Lane::kH2d;
    case plan::Lane::kD2H:
      return Lane::kD2h;
    case plan::Lane::kRead:
      return Lane::kNvmeRead;
    case plan::Lane::kWrite:
      return Lane::kNvmeWrite;
    case plan::Lane::kOptimizer:
      return Lane::kOptimizer;
    case plan::Lane::kCommit:
      return std::nullopt;
  }
  return std::nullopt;
}

class Loop {
 public:
  explicit Loop(const LoopParts& parts)
      : parts_(parts),
        metrics_(parts.folder->metrics(), static_cast<std::uint64_t>(parts.first_step)),
        tensorboard_(parts.folder->file("tensorboard"),
                     static_cast<std::uint64_t>(parts.first_step) + 1),
        progress_(progress_options(parts)),
        holds_(holds_parts(parts)) {
    if (parts.trace) trace_.emplace(parts.folder->file("trace.json"));
    result_.steps = parts.first_step;
  }

  LoopResult run() {
    parts_.session->executor().take_totals();  // of a sample before the first step
    const double start = now_seconds();
    double step_start = start;
    for (std::int64_t step = parts_.first_step + 1; step <= parts_.steps; ++step) {
      // The batch of the step before stays alive: its row gradients may still be summed.
      last_batch_ = std::move(batch_);
      batch_ = std::make_unique<data::StepBatch>(
          parts_.loader->step_batch(step - 1 - parts_.data_start));
      step::Trainer& trainer = parts_.session->trainer();
      const double loss_scale = parts_.loss_scaler != nullptr ? parts_.loss_scaler->scale() : 1;
      trainer.set_loss_scale(loss_scale);
      trainer.forward(*batch_);
      // A skipped step moves neither the schedule nor the bias correction.
      const double lr = parts_.schedule.rate(trainer.version() + 1);
      const step::StepResult result = trainer.backward(lr);
      last_batch_.reset();
      if (parts_.loss_scaler != nullptr) close_fp16_step(step, result);
      parts_.note_step(step, result.finite ? std::optional(result.loss) : std::nullopt);
      if (result.finite) {
        parts_.session->trainer().update(lr, step);
        skips_in_a_row_ = 0;
      } else if (parts_.loss_scaler != nullptr) {
        parts_.session->trainer().skip();
      } else {
        skip_or_stop(step, result);
      }
      const bool last = step == parts_.steps;
      const bool keeps = holds_.step_done(step, result.finite, last);
      const bool evaluate =
          due(parts_.config->eval.every, step) || (last && parts_.eval_loader != nullptr);
      int signal = stop_requested();
      bool ends = last || signal != 0 || holds_.failure() != nullptr;
      const bool due_now = commit_due(step, keeps);
      const bool drains = evaluate || ends || due_now;
      // A step that drains commits below, not in its program: only then is its line in
      // metrics.jsonl.
      bool commits = ends || due_now || (evaluate && commits_applied(result));
      if (drains) parts_.session->trainer().drain(/*commits=*/false);
      // Steady: one whole update and one whole forward and backward lie between the step's borders.
      steady_ = step > parts_.first_step + 2 && !drains && !drained_;
      drained_ = drains;
      const double now = now_seconds();
      observe::StepRecord record = make_record(step, result, lr, now - step_start);
      if (parts_.loss_scaler != nullptr) {
        record.loss_scale = loss_scale;
        record.overflow_skips = static_cast<std::uint64_t>(parts_.loss_scaler->state().skipped);
      }
      if (evaluate && parts_.eval_loader != nullptr) {
        say(observe::RunState::kEvaluating, record.step);
        record.eval_loss = run_evaluation(step, last);
        if (record.eval_loss) result_.eval_loss = record.eval_loss;
        if (!ends && (signal = stop_requested()) != 0) ends = commits = true;
      }
      report(record);
      if (ends) holds_.settle(!last);
      if (commits && parts_.commit) {
        say(observe::RunState::kSaving, record.step);
        parts_.commit(step);
        holds_.committed(step);
      }
      if (holds_.failure()) std::rethrow_exception(holds_.failure());
      if ((evaluate || last) && parts_.sample) {
        parts_.sample(step);
        parts_.session->executor().take_totals();  // no part of the next step
      }
      result_.steps = step;
      result_.final_loss = result.loss;
      if (signal != 0 && !last) {
        result_.stopped_by = signal;
        break;
      }
      step_start = now_seconds();
    }
    progress_.finish();
    parts_.session->trainer().drain();
    over_ = true;
    for (const Lane lane : {Lane::kNvmeRead, Lane::kNvmeWrite}) {
      const std::string name(lane_name(lane));
      result_.profile_ratio[name] = slow_lanes_.profile_ratio(name);
    }
    result_.total_seconds = now_seconds() - start;
    return std::move(result_);
  }

 private:
  static observe::ProgressOptions progress_options(const LoopParts& parts) {
    observe::ProgressOptions options = observe::progress_options_for(STDERR_FILENO);
    options.steps = static_cast<std::uint64_t>(parts.steps);
    options.unit = parts.unit;
    options.quiet = !log::shows(log::Level::kInfo);
    return options;
  }

  static bool due(const std::optional<std::int64_t>& every, std::int64_t step) {
    return every && *every > 0 && step % *every == 0;
  }

  static HoldsParts holds_parts(const LoopParts& parts) {
    HoldsParts holds;
    holds.trainer = &parts.session->trainer();
    holds.executor = &parts.session->executor();
    holds.keeper = parts.keeper;
    holds.readers = parts.readers;
    holds.keep_every = parts.keep_every;
    holds.commits_in_program = parts.plan->input.settings.commit_each_step;
    if (parts.last_commit) holds.last_commit = parts.last_commit();
    return holds;
  }

  // keeps: a copy of this step's commit is to be made.
  bool commit_due(std::int64_t step, bool keeps) {
    if (!parts_.commit || parts_.plan->input.settings.commit_each_step) return false;
    const auto& every = parts_.config->checkpoint.every;
    const double seconds = every && every->seconds ? *every->seconds : 600;
    const bool due =
        every && every->steps ? step % *every->steps == 0 : now_seconds() - last_commit_ >= seconds;
    if ((!due && !keeps) || holds_.held()) return false;
    last_commit_ = now_seconds();
    return true;
  }

  // Where each step is committed, this one is to be.
  bool commits_applied(const step::StepResult& result) const {
    return parts_.plan->input.settings.commit_each_step && result.finite && !holds_.held();
  }

  // A loss that is not finite leaves no gradient that is.
  std::string what_is_bad(const step::StepResult& result) const {
    return !std::isfinite(result.loss)
               ? str("the loss is ", result.loss)
               : str("the gradient of ", parts_.plan->model->pieces[result.first_bad_piece].name,
                     " is not finite");
  }

  // Where in forward a loss that is not finite comes from: it is looked for once the run has
  // failed, so that it costs nothing before.
  std::string origin(const step::StepResult& result) {
    if (std::isfinite(result.loss)) return "";
    const int stage =
        parts_.session->trainer().first_bad_stage(*batch_, parts_.plan->input.settings.group);
    if (stage < 0) return "";
    return str(", first seen in the output of ",
               parts_.plan->model->stages[static_cast<std::size_t>(stage)].name);
  }

  // Ends the run before this step's update, with those before it applied.
  [[noreturn]] void stop_at(std::int64_t step, const step::StepResult& result,
                            const std::string& when, const std::string& hint) {
    parts_.session->trainer().skip();
    parts_.session->trainer().drain();
    const std::string what = what_is_bad(result) + when + origin(result);
    progress_.finish();
    const std::string commit =
        parts_.plan->input.settings.slots == 1
            ? "nothing is committed (checkpoint.slots: 1)"
            : str("the last commit is step ", parts_.last_commit().value_or(parts_.first_step));
    throw Error(ErrorKind::kFailed,
                str("step ", step, ": ", what, "; no state was changed by this step; ", commit),
                hint);
  }

  // Overflows belong to fp16 and are no failure, until the scale can fall no further.
  void close_fp16_step(std::int64_t step, const step::StepResult& result) {
    optim::LossScaler& scaler = *parts_.loss_scaler;
    const double before = scaler.scale();
    const int patience = scaler.state().hysteresis;
    const optim::StepVerdict verdict = scaler.update(result.finite);
    if (verdict == optim::StepVerdict::kApply) return;
    progress_.clear();
    if (verdict == optim::StepVerdict::kStop) {
      stop_at(step, result, str(" at the least loss scale, ", before),
              "train in bf16, whose range is that of fp32, or look at the data of this step");
    }
    if (!scaler.is_dynamic() && ++skips_in_a_row_ == kMostSkips) {
      stop_at(step, result,
              str(" at the fixed loss scale ", before, ", in ", kMostSkips, " steps in a row"),
              "give a smaller fp16.loss_scale, or 0 (dynamic), or train in bf16");
    }
    std::string now;
    if (scaler.scale() < before) {
      now = str("; now ", scaler.scale());
    } else if (scaler.state().hysteresis < patience) {
      now = str("; the scale falls after ", scaler.state().hysteresis, " more (fp16.hysteresis)");
    }
    log::info(
        str("step ", step, " is skipped: ", what_is_bad(result), " at loss scale ", before, now));
  }

  void skip_or_stop(std::int64_t step, const step::StepResult& result) {
    if (parts_.config->train.on_nonfinite == config::OnNonfinite::kSkip &&
        ++skips_in_a_row_ < kMostSkips) {
      parts_.session->trainer().skip();
      progress_.clear();
      log::warning(str("step ", step, " is skipped: ", what_is_bad(result)));
      return;
    }
    stop_at(step, result, "",
            "lower the learning rate, clip gradients (gradient_clipping: 1.0), or look at the data "
            "of this step");
  }

  // None: a stop was asked for, and the rest of its grace time is for the commit. The last
  // evaluation is always made: none comes after it.
  std::optional<double> run_evaluation(std::int64_t step, bool last) {
    const std::int64_t all = parts_.eval_loader->steps_per_epoch();
    const std::int64_t count =
        std::min(all > 0 ? all : 1, parts_.config->eval.steps.value_or(all > 0 ? all : 1));
    const int group = parts_.plan->input.settings.group;
    step::Trainer::Evaluation sum;
    for (std::int64_t i = 0; i < count;) {
      if (!last && half_of_grace_is_over()) {
        progress_.clear();
        log::warning(str("the evaluation of step ", step, " is given up: a stop was asked for"));
        parts_.session->executor().take_totals();
        return std::nullopt;
      }
      data::StepBatch batch;  // what one visit takes, so that the weights move once for all of it
      for (; i < count && std::ssize(batch.micro_batches) < group; ++i) {
        data::StepBatch next = parts_.eval_loader->step_batch(i);
        for (data::MicroBatch& micro : next.micro_batches)
          batch.micro_batches.push_back(std::move(micro));
      }
      parts_.session->trainer().evaluate(batch, group, model::kNoDropout, sum);
    }
    parts_.session->executor().take_totals();
    return sum.loss_sum / static_cast<double>(sum.target_tokens);
  }

  // As far as can be told: a signal is noticed between visits.
  bool half_of_grace_is_over() {
    const double grace = parts_.config->checkpoint.grace;
    if (stop_requested() == 0 || grace <= 0) return false;
    if (stop_seen_ == 0) stop_seen_ = now_seconds();
    return now_seconds() - stop_seen_ > grace / 2;
  }

  observe::StepRecord make_record(std::int64_t step, const step::StepResult& result, double lr,
                                  double seconds) {
    observe::StepRecord record;
    record.step = static_cast<std::uint64_t>(step);
    record.loss = result.loss;
    record.lr = lr;
    record.grad_norm = result.grad_norm;
    record.clip_factor = result.clip_factor;
    record.redo = parts_.session->trainer().redone() > redone_;
    redone_ = parts_.session->trainer().redone();
    record.tokens = static_cast<std::uint64_t>(batch_->tokens);
    record.target_tokens = static_cast<std::uint64_t>(batch_->target_tokens);
    record.padding = batch_->padding;
    record.seconds = seconds;
    record.tokens_per_second = static_cast<double>(batch_->tokens) / seconds;
    record.efficiency = parts_.plan->forecast.ideal_seconds / seconds;
    const Bytes process = peak_resident_bytes();  // the host's budget is for all of it
    record.peak_bytes = {{"device", parts_.session->runner().peak_bytes(plan::Arena::kDevice)},
                         {"host", process},
                         {"nvme", parts_.session->tiers().nvme_bytes()},
                         {"process", process}};
    const std::vector<step::LaneTotals> totals = parts_.session->executor().take_totals();
    record.bottleneck = busiest_lane(totals);
    for (int lane = 0; lane < plan::kLanes; ++lane) {
      if (const auto shown = shown_lane(static_cast<plan::Lane>(lane))) {
        record.lane_busy[*shown] = totals[lane].busy_seconds / seconds;
        record.stall_seconds[*shown] = totals[lane].stall_seconds;
      }
      if (steady_) {
        result_.lanes[lane].busy_seconds += totals[lane].busy_seconds;
        result_.lanes[lane].stall_seconds += totals[lane].stall_seconds;
        result_.lanes[lane].bytes += totals[lane].bytes;
      }
    }
    record.nvme_read_bytes = totals[static_cast<int>(plan::Lane::kRead)].bytes;
    record.nvme_write_bytes = totals[static_cast<int>(plan::Lane::kWrite)].bytes;
    if (steady_) {
      ++result_.steady_steps;
      result_.steady_seconds += seconds;
    }
    if (steady_ || result_.steady_steps == 0) {
      result_.step_seconds.push_back(seconds);
      result_.exposed_optimizer_seconds.push_back(
          totals[static_cast<int>(plan::Lane::kOptimizer)].exposed_seconds);
    }
    ++result_.made;
    result_.tokens += batch_->tokens;
    return record;
  }

  void report(const observe::StepRecord& record) {
    metrics_.append(record);
    tensorboard_.append(record);
    progress_.step(record);
    if (trace_) trace_step(record.step);
    std::vector<observe::LaneRate> rates;
    const plan::Hardware& hardware = parts_.hardware;
    const auto rate = [&](Lane lane, double expected, double bytes) {
      const double busy = record.lane_busy[lane] * record.seconds;
      if (expected > 0 && busy > 0) {
        rates.push_back(
            {std::string(lane_name(lane)), "GB/s", expected / 1e9, bytes / busy / 1e9, busy});
      }
    };
    rate(Lane::kNvmeRead, hardware.nvme_read, static_cast<double>(record.nvme_read_bytes));
    rate(Lane::kNvmeWrite, hardware.nvme_write, static_cast<double>(record.nvme_write_bytes));
    for (const std::string& text : slow_lanes_.observe(record, rates)) {
      progress_.clear();
      log::warning(text);
    }
    say(observe::RunState::kTraining, record.step);
  }

  // status.json, for who watches from outside.
  void say(observe::RunState state, std::uint64_t step) {
    observe::Status status;
    status.pid = static_cast<int>(::getpid());
    status.state = state;
    status.step = step;
    status.steps = static_cast<std::uint64_t>(parts_.steps);
    status.eta_seconds = progress_.eta_seconds();
    if (parts_.last_commit) status.last_commit = parts_.last_commit();
    write_status(status, parts_.folder->status());
  }

  void trace_step(std::uint64_t step) {
    for (const step::OpTiming& timing : parts_.session->executor().take_timings()) {
      const plan::Op& op = parts_.plan->programs.program(timing.segment).ops[timing.op];
      std::string what = plan::op_kind_name(op.kind);
      if (op.stage >= 0) what = str(what, " ", parts_.plan->model->stages[op.stage].name);
      if (op.piece >= 0) what = str(what, " ", parts_.plan->model->pieces[op.piece].name);
      if (op.micro_batch >= 0) what = str(what, " m", op.micro_batch);
      observe::TraceSpan span;
      span.lane = plan::lane_name(op.lane);
      span.name = what;
      span.start_seconds = timing.start;
      span.seconds = timing.end - timing.start;
      span.bytes = op.bytes();
      span.predicted_seconds = predicted(timing.segment)[static_cast<std::size_t>(timing.op)];
      span.step = step;
      trace_->span(span);
    }
  }

  const std::vector<double>& predicted(plan::Segment segment) {
    std::vector<double>& seconds = predicted_[static_cast<std::size_t>(segment)];
    if (seconds.empty())
      seconds = op_seconds(parts_.plan->programs, parts_.plan->input, parts_.hardware, segment);
    return seconds;
  }

  const LoopParts& parts_;
  observe::MetricsWriter metrics_;
  observe::TensorBoardWriter tensorboard_;
  std::optional<observe::TraceWriter> trace_;
  std::array<std::vector<double>, plan::kSegments> predicted_;
  observe::Progress progress_;
  observe::SlowLaneDetector slow_lanes_;
  Holds holds_;
  std::unique_ptr<data::StepBatch> batch_, last_batch_;
  LoopResult result_;
  static constexpr int kMostSkips = 10;  // in a row, before skipping becomes an error
  int skips_in_a_row_ = 0;
  std::int64_t redone_ = 0;
  bool steady_ = false;
  bool drained_ = false;
  bool over_ = false;
  double last_commit_ = now_seconds();
  double stop_seen_ = 0;
};

}  // namespace

LrSchedule lr_schedule(const config::RunConfig& config, std::int64_t steps) {
  const config::SchedulerConfig& from = config.scheduler;
  LrSchedule schedule;
  schedule.type = static_cast<ScheduleType>(static_cast<int>(from.type));
  schedule.peak = from.warmup_max_lr.value_or(config.optimizer.lr);
  schedule.min_lr = from.warmup_min_lr;
  schedule.total_steps = from.total_num_steps.value_or(steps);
  schedule.warmup_steps = from.warmup_num_steps.value_or(static_cast<std::int64_t>(
      std::ceil(from.warmup_ratio * static_cast<double>(schedule.total_steps))));
  schedule.warmup_type =
      from.warmup_type == config::WarmupType::kLog ? WarmupType::kLog : WarmupType::kLinear;
  schedule.warmup_min_ratio = from.warmup_min_ratio;
  schedule.cos_min_ratio = from.cos_min_ratio;
  schedule.validate();
  return schedule;
}

std::string busiest_lane(std::span<const step::LaneTotals> totals) {
  std::string name;
  double most = 0;
  for (std::size_t lane = 0; lane < totals.size(); ++lane) {
    if (!shown_lane(static_cast<plan::Lane>(lane)) || totals[lane].busy_seconds <= most) continue;
    most = totals[lane].busy_seconds;
    name = plan::lane_name(static_cast<plan::Lane>(lane));
  }
  return name;
}

LoopResult run_steps(const LoopParts& parts) { return Loop(parts).run(); }

}  // namespace zinf::train
