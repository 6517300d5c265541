// The main path, in the order in which it happens: config -> model -> data -> plan -> tiers ->
// steps -> what is left.
#include "engine/train/train.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/machine.h"
#include "engine/base/signals.h"
#include "engine/base/str.h"
#include "engine/base/under_way.h"
#include "engine/config/reference.h"
#include "engine/model/torch_compute.h"
#include "engine/model/torch_runtime.h"
#include "engine/observe/report.h"
#include "engine/observe/status.h"
#include "engine/plan/explain.h"
#include "engine/step/activity.h"
#include "engine/train/commit.h"
#include "engine/train/dry_run.h"
#include "engine/train/finish.h"
#include "engine/train/going_on.h"
#include "engine/train/kept_runs.h"
#include "engine/train/plan_run.h"
#include "engine/train/resume_check.h"
#include "engine/train/run_data.h"
#include "engine/train/sample.h"
#include "engine/train/session.h"
#include "engine/train/steps.h"
#include "engine/train/stored_run.h"

namespace zinf::train {

namespace {

// One run, from its config to what it leaves behind. The methods are called in this order.
class TrainingRun {
 public:
  // of: the commit that is looked at, in a dry run; none: the newest that there is.
  TrainingRun(const config::LoadResult& loaded, const TrainOptions& options,
              const std::optional<checkpoint::Manifest>& of = std::nullopt)
      : config_(loaded.config),
        options_(options),
        steps_(loaded.config.train.steps),
        folder_(loaded.config, options.dry_run ? FolderUse::kLook
                               : options.fresh ? FolderUse::kFresh
                                               : FolderUse::kGoOn) {
    if (!options.dry_run) log::attach_file(folder_.log());
    going_on_.emplace(config_, options_, folder_, of);
    log::info(machine_line());
    say_notes(loaded);
  }

  ~TrainingRun() { set_grace_action({}); }

  // Nothing is left to do, as far as is known: train.epochs has no steps before the data is open. A
  // run that was killed after its last commit still owes what it leaves.
  bool finished_before() const {
    if (resume() == nullptr || !resume()->finished || !steps_ || resume()->step < *steps_)
      return false;
    const bool exports = config_.export_.at_end && config_.model.path.has_value();
    return folder_.summary_ends_at(resume()->step) &&
           (!exports || std::filesystem::exists(folder_.model()));
  }

  void open_model_and_data() {
    file_watch_.emplace(config_.train.stall_timeout, longest_call,
                        [this](const std::string& what) { end_hung(what); });
    model_ = open_model(config_, true);
    const checkpoint::Manifest* before = going_on_->would_be();
    batch_ = batch_shape(config_, model_, row_length(config_, model_),
                         before != nullptr ? BatchShape{before->micro_batch, before->accumulation}
                                           : BatchShape{0, 0});
    log::info(str(model_.model.spec.family, ", ", model_.model.spec.parameters(),
                  " parameters, weights in ",
                  name(optimizer_format(config_, model_.compute_type()).weight)));
    data_ = open_run_data(config_, model_, batch_, folder_.cache());
    data_start_ = data_start(before, data_, config_);
    if (!steps_)
      steps_ = data_start_ + data_.train->total_steps(config_.train.epochs.value_or(1.0));
    if (before != nullptr) check_length(*before, *steps_);
    schedule_ = lr_schedule(config_, *steps_);
  }

  void make_the_plan() {
    if (!options_.dry_run) going_on_->settle();
    model::set_compute_threads(usable_physical_cores());
    compute_ = make_torch_compute(model_.model);
    optimizer_.emplace(optimizer_format(config_, model_.compute_type()), optimizer_hyper(config_));
    log::info(optimizer_line(config_, *optimizer_, pool_));
    const data::ShapeClass largest = data_.train->shape_classes().front();
    shape_ = {largest.rows, largest.length};
    const plan::Budgets budget =
        budgets_now(config_, model_.compute_type(), going_on_->area_name());
    refuse_too_large(config_, model_, batch_, shape_, budget, budget.host);
    const StageProbe probe = probe_stages(model_.model.spec, *compute_, shape_, budget.device);
    if (model_.compute_type() == model::DType::kFloat16)
      loss_scaler_ =
          make_loss_scaler(config_, resume() != nullptr ? resume()->loss_scale : std::nullopt);
    hardware_ = measure_hardware(config_, *optimizer_, pool_);
    plan_ = plan_with_room(store_now(), options_.fresh, hardware_, [&] {
      return make_plan(
          plan_request(config_, model_, batch_, shape_, probe, hardware_,
                       budgets_now(config_, model_.compute_type(), going_on_->area_name())));
    });
    refuse_beyond_machine(plan_);
  }

  void show_plan() const {
    if (options_.dry_run) {
      show_dry_run(config_, model_, *data_.train, plan_, options_.json);
    } else if (log::shows(log::Level::kInfo)) {
      std::cerr << plan::explain(plan_);
    }
  }

  // For scripts that ask whether a run fits; people read the error.
  void show_refusal(const Error& error) const {
    if (options_.dry_run && options_.json && data_.train && error.kind() == ErrorKind::kDoesNotFit)
      show_dry_refusal(config_, model_, *data_.train, error.what());
  }

  // Of a dry run: whether the run that is there could go on so.
  void check_going_on() const {
    const checkpoint::Manifest* before = going_on_->would_be();
    if (before == nullptr || (before->finished && before->step == *steps_)) return;
    going_on_->say_move();
    check_resume(*before, base_of(store_now()), config_, options_.allow, going_on_->is_copied());
  }

  // Everything is allocated here.
  void open_tiers() {
    nvme::StoreOptions store = store_now();
    store.wrap_engine = options_.wrap_io;
    committer_.emplace(base_of(store), folder_,
                       [this](const checkpoint::Manifest& manifest, const std::string& pages) {
                         if (keeper_) keeper_->published(manifest, pages);
                         if (readers_) readers_->published(manifest.step);
                       });
    if (resume() != nullptr)
      check_resume(*resume(), committer_->base(), config_, options_.allow, going_on_->is_copied());
    if (options_.fresh) {
      check_space_after_drop(config_, model_, plan_, store);
      folder_.drop_run(config_);
    }
    folder_.write_config(config_);
    going_on_->prepare();
    if (two_slots()) readers_.emplace(folder_.path());
    session_.emplace(session_parts(store));
    mark_area(going_on_->area(), store.area, committer_->base().drives);
    write_state(observe::RunState::kStarting, "", std::nullopt);
    set_grace_action([this](int signal) {
      write_state(observe::RunState::kInterrupted, "the step did not end within checkpoint.grace",
                  128 + signal);
    });
    if (auto keeping = prepare_keeping(config_, model_, hardware_, committer_->base(),
                                       going_on_->area(), session_->tiers()))
      keeper_.emplace(std::move(*keeping));
    if (resume() != nullptr) {
      taken_ = going_on_->take(*session_, plan_, store, committer_->base(), *steps_);
      if (!taken_) return;
      if (two_slots()) committer_->last_step_is(resume()->step);
    } else {
      session_->load(*model_.weights);
      if (two_slots()) committer_->commit(*session_, 0, false);
      write_state(observe::RunState::kStarting, "", std::nullopt);
    }
    if (!two_slots()) {
      // From the first update on the only copy of the state is in motion: no manifest may name it.
      manifests().remove_all();
      log::warning(
          "checkpoint.slots: 1 keeps one copy of the state: a kill before the end loses the run");
    }
  }

  void run() {
    const Sampler sampler(config_, model_, shape_);
    if (resume() == nullptr) sampler.print(session_->trainer(), "before");
    if (stop_requested() != 0) return;
    LoopParts loop{&config_,         &plan_,   &*session_, data_.train.get(),
                   data_.eval.get(), &folder_, schedule_,  hardware_};
    loop.trace = options_.trace;
    if (loss_scaler_) loop.loss_scaler = &*loss_scaler_;
    loop.last_commit = [this] { return committer_->last_step(); };
    loop.first_step = resume() != nullptr ? resume()->step : 0;
    loop.data_start = data_start_;
    loop.steps = *steps_;
    loop.unit = model_.model.spec.vocabulary > 0 ? "tok" : "samples";
    loop.sample = [&](std::int64_t step) {
      sampler.print(session_->trainer(), str("after step ", step));
    };
    loop.commit = [this](std::int64_t step) {
      if (committer_->last_step() == step) return;  // its program has committed it
      if (two_slots() || step == *steps_ || stop_requested() != 0)
        committer_->commit(*session_, step, step == *steps_);
    };
    loop.note_step = [this](std::int64_t step, std::optional<double> loss) {
      StepNote note{loss, {}};
      if (loss_scaler_) note.loss_scale = loss_scaler_->state();
      committer_->note(step, note);
    };
    loop.keeper = keeper_ ? &*keeper_ : nullptr;
    loop.readers = readers_ ? &*readers_ : nullptr;
    loop.keep_every = keep_cadence(config_);
    const StallWatch lanes(
        config_.train.stall_timeout,
        [this] { return step::longest_activity(session_->executor(), model_.model.spec); },
        [this](const std::string& what) { end_hung(what); });
    result_ = run_steps(loop);
    if (resume() == nullptr || result_.steps != resume()->step) return;
    // No step was left to make.
    result_.final_loss = resume()->loss;
    if (result_.steps == *steps_ && (!resume()->finished || !two_slots()))
      committer_->commit(*session_, *steps_, true);
  }

  // Of the batch that follows the given commit, by its weights. Nothing is written.
  double loss_after(const checkpoint::Manifest& manifest, const std::string& pages) {
    require_data(manifest, data_files(data_));
    going_on_->look_at(manifest);
    SessionParts parts =
        session_parts(state_store(config_, folder_.path(), manifest.area, hardware_));
    parts.open_mode = nvme::OpenMode::kRead;
    parts.scratch_ending = str("-scratch-", ::getpid());  // the run may be training, with its own
    session_.emplace(parts);
    going_on_->restore(*session_, pages);
    const data::StepBatch batch = data_.train->step_batch(manifest.step - manifest.data_start);
    const auto loss = session_->trainer().evaluate(batch, plan_.input.settings.group,
                                                   session_->trainer().training_key());
    return loss.loss_sum / static_cast<double>(loss.target_tokens);
  }

  // A signal came before the first step: the run is as its last commit says.
  int leave_early() {
    result_.stopped_by = stop_requested();
    if (session_ && taken_ && !two_slots())
      committer_->commit(*session_, resume() != nullptr ? resume()->step : 0, false);
    if (session_) write_end_status();
    log::warning(str("stopped by ", signal_name(result_.stopped_by),
                     " before a step was made; the same command ",
                     resume() != nullptr || session_ ? "goes on from here" : "begins again"));
    return 128 + result_.stopped_by;
  }
  bool left_early() const {
    return stop_requested() != 0 && result_.steps <= (resume() != nullptr ? resume()->step : 0);
  }

  // Summary, report, model. The exit code.
  int leave() {
    if (result_.stopped_by != 0) {
      write_end_status();
      set_grace_action({});  // the run is over, whatever of the rest is done in time
      log::warning(str("stopped by ", signal_name(result_.stopped_by), " after step ",
                       result_.steps,
                       "; the state is committed: the same command goes on from here"));
    } else {
      write_state(observe::RunState::kSaving, "", std::nullopt);
    }
    const observe::Summary summary = make_summary(config_, plan_, *session_, result_);
    const bool exports = result_.stopped_by == 0 && config_.export_.at_end && model_.folder;
    // Of the same run with fewer steps. With this summary it would count as the run's.
    if (exports || (result_.stopped_by == 0 && result_.made > 0))
      std::filesystem::remove_all(folder_.model());
    write_summary(summary, folder_.summary());
    observe::write_report(folder_.path());
    if (result_.stopped_by != 0) return 128 + result_.stopped_by;
    if (exports)
      export_at_end(config_, model_, session_->states(), session_->trainer().slot(),
                    folder_.model());
    write_end_status();
    std::cout << (options_.json ? summary_json(summary) : summary_table(summary));
    return 0;
  }

  int say_finished() const {
    log::info(str("this run is finished (step ", resume()->step,
                  "); --fresh starts over, zinf export writes its model"));
    for (const std::string& line : compare(*resume(), *resume(), config_).meaningful)
      log::warning(str("it was made with another setting: ", line));
    return 0;
  }

  // For who watches status.json. A refused command or a new run not yet begun leaves it alone.
  void note_failure(const std::string& what, int exit_code) const {
    const bool begun = exit_code == 1 && !options_.dry_run && !options_.fresh;
    if (session_ || begun) write_state(observe::RunState::kFailed, what, exit_code);
  }

 private:
  nvme::StoreOptions store_now() const {
    return state_store(config_, folder_.path(), going_on_->area_name(), hardware_);
  }
  checkpoint::Manifest base_of(const nvme::StoreOptions& store) const {
    return manifest_base(config_, model_, plan_, *optimizer_, data_, batch_, data_start_, store,
                         *steps_);
  }

  // The commit that the run goes on from; nullptr: it begins, or this is a dry run.
  const checkpoint::Manifest* resume() const { return going_on_->commit(); }
  checkpoint::ManifestFolder manifests() const {
    return checkpoint::ManifestFolder(folder_.path());
  }
  bool two_slots() const { return plan_.input.settings.slots == 2; }

  SessionParts session_parts(const nvme::StoreOptions& store) {
    SessionParts parts;
    parts.plan = &plan_;
    parts.compute = compute_.get();
    parts.optimizer = &*optimizer_;
    parts.pool = &pool_;
    parts.groups = decay_groups(config_);
    parts.group_ranges = decay_ranges(model_.model.spec);
    parts.store = store;
    parts.open_mode = going_on_->open_mode();
    parts.verify = config_.io.verify;
    parts.trainer = trainer_options(config_, plan_);
    parts.executor.keep_timings = options_.trace;
    parts.executor.commit = [this](std::int64_t step, std::int64_t version, int slot) {
      committer_->publish(session_->tiers(), step, version, slot, false, step == *steps_);
    };
    if (resume() != nullptr) {
      parts.trainer.version = resume()->version;
      parts.trainer.slot = parts.trainer.committed_slot = resume()->slot;
      parts.trainer.moments_are_zero = resume()->moments_are_zero;
    }
    return parts;
  }

  std::optional<std::int64_t> last_commit() const {
    if (!taken_ && going_on_->newest() != nullptr) return going_on_->newest()->step;
    const auto committed = committer_ ? committer_->last_step() : std::nullopt;
    return committed || resume() == nullptr ? committed : std::optional(resume()->step);
  }

  void write_end_status() const {
    const int signal = result_.stopped_by;
    write_state(signal != 0 ? observe::RunState::kInterrupted : observe::RunState::kFinished,
                signal != 0 ? str("stopped by ", signal_name(signal)) : std::string(),
                signal != 0 ? 128 + signal : 0);
  }

  void write_state(observe::RunState state, const std::string& message,
                   std::optional<int> exit_code) const {
    observe::Status status;
    status.pid = static_cast<int>(::getpid());
    status.state = state;
    const std::optional<std::int64_t> committed = last_commit();
    status.step = static_cast<std::uint64_t>(std::max(result_.steps, committed.value_or(0)));
    status.steps = static_cast<std::uint64_t>(steps_.value_or(0));
    if (committed) status.last_commit = static_cast<std::uint64_t>(*committed);
    status.message = message;
    status.exit_code = exit_code;
    write_status(status, folder_.status());
  }

  // In a watch's thread; the hung one can't be unwound.
  [[noreturn]] void end_hung(const std::string& what) const {
    const std::optional<std::int64_t> committed = last_commit();
    const std::string text =
        str(what, ", longer than train.stall_timeout (", config_.train.stall_timeout, " s)");
    done_within(2, [&] {  // log and status may lie where it hangs
      log::error(text + (committed ? str("; the last commit, step ", *committed, ", is whole")
                                   : std::string()));
      note_failure(text, 1);
    });
    ::_exit(1);
  }

  const config::RunConfig& config_;
  const TrainOptions& options_;
  std::optional<std::int64_t> steps_;  // of the whole run; none: known once the data is open
  RunFolder folder_;
  std::optional<GoingOn> going_on_;
  bool taken_ = true;  // nothing, or the commit that the run goes on from, has come into the area
  ModelInput model_;
  BatchShape batch_;
  data::DataSet data_;
  std::int64_t data_start_ = 0;  // the step after which the data begins
  LrSchedule schedule_;
  std::unique_ptr<model::Compute> compute_;
  optim::Pool pool_{optimizer_threads(config_)};
  std::optional<optim::Optimizer> optimizer_;
  std::optional<optim::LossScaler> loss_scaler_;  // fp16
  plan::ShapeClass shape_;
  plan::Hardware hardware_;
  plan::Plan plan_;
  std::optional<Committer> committer_;
  // Before the session: its last commit may still be told to them.
  std::optional<ReadHoldServer> readers_;
  std::optional<Keeper> keeper_;
  std::optional<Session> session_;
  LoopResult result_;
  std::optional<StallWatch> file_watch_;
};

}  // namespace

StoredLoss stored_loss(const std::string& run_folder, std::optional<std::int64_t> step) {
  const StoredRun stored(run_folder, step);  // holds a run that is training
  const checkpoint::Manifest& manifest = stored.manifest();
  config::LoadResult loaded;
  loaded.config = stored.config();
  loaded.config.output_dir = run_folder;
  TrainOptions options;
  options.dry_run = true;
  TrainingRun run(loaded, options, manifest);
  run.open_model_and_data();
  run.make_the_plan();
  StoredLoss result;
  result.step = manifest.step;
  result.trained = manifest.loss;
  result.next = run.loss_after(manifest, stored.pages());
  result.same_machine = of_this_machine(manifest);
  result.logged = logged_loss(run_folder, manifest.step + 1);
  return result;
}

int train(const config::LoadResult& loaded, const TrainOptions& options) {
  refuse_unsupported(loaded.config);
  TrainingRun run(loaded, options);
  if (run.finished_before()) return run.say_finished();
  try {
    run.open_model_and_data();
    if (run.finished_before()) return run.say_finished();
    if (stop_requested() != 0) return run.leave_early();
    run.make_the_plan();
    run.show_plan();
    if (options.dry_run) {
      run.check_going_on();
      return 0;
    }
    if (stop_requested() != 0) return run.leave_early();
    run.open_tiers();
    if (stop_requested() == 0) run.run();
    return run.left_early() ? run.leave_early() : run.leave();
  } catch (const Error& error) {
    run.show_refusal(error);
    run.note_failure(error.what(), error.exit_code());
    throw;
  } catch (const std::exception& error) {
    run.note_failure(error.what(), 1);
    throw;
  }
}

}  // namespace zinf::train
