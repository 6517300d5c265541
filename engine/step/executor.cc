#include "engine/step/executor.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/str.h"

namespace zinf::step {

using plan::Lane;
using plan::Op;
using plan::OpKind;
using plan::Program;

namespace {
bool has_thread(Lane lane) {
  return lane == Lane::kCompute || lane == Lane::kOptimizer || lane == Lane::kCommit;
}
int index(Lane lane) { return static_cast<int>(lane); }
}  // namespace

Executor::Executor(const plan::ProgramSet& programs, swap::Tiers& tiers, OpRunner& runner,
                   ExecutorOptions options)
    : programs_(programs),
      tiers_(tiers),
      runner_(runner),
      options_(std::move(options)),
      update_pages_(programs, tiers, runner, options_.verify_in_update),
      lanes_(plan::kLanes) {
  totals_.resize(plan::kLanes);
  for (const Program& program : programs_.programs) successors_of(program);
  for (const Lane lane : {Lane::kCompute, Lane::kOptimizer, Lane::kCommit}) {
    threads_.emplace_back([this, lane] { worker(lane); });
  }
}

Executor::~Executor() {
  {
    std::unique_lock lock(mutex_);
    stop_ = true;
    for (LaneQueue& lane : lanes_) lane.queue.clear();
    progress_.wait(lock, [this] { return in_flight_ == 0 && pumping_ == 0; });
  }
  for (LaneQueue& lane : lanes_) lane.wake.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Executor::successors_of(const Program& program) {
  std::vector<std::vector<int>> after(program.ops.size());
  for (std::size_t op = 0; op < program.ops.size(); ++op) {
    for (const int before : program.ops[op].after)
      after[static_cast<std::size_t>(before)].push_back(static_cast<int>(op));
  }
  successors_.push_back(std::move(after));
}

void Executor::submit(Segment segment, const SegmentArgs& args) {
  std::unique_lock lock(mutex_);
  // Links reach back one segment only; whatever is older must be done.
  progress_.wait(lock, [this] {
    reap_locked();
    return failure_ != nullptr || running_.size() < 2 || running_[running_.size() - 2]->left == 0;
  });
  throw_if_failed(lock);
  const Program& program = programs_.program(segment);
  auto running = std::make_unique<Running>();
  running->program = &program;
  running->args = args;
  running->waiting.resize(program.ops.size());
  running->done.assign(program.ops.size(), 0);
  running->last_lane.assign(program.ops.size(), Lane::kCompute);
  running->held.assign(program.ops.size(), 0.0);
  running->submitted = now_seconds();
  running->left = program.ops.size();
  for (std::size_t op = 0; op < program.ops.size(); ++op) {
    running->waiting[op] = static_cast<int>(program.ops[op].after.size());
    running->left_deciding += plan::decides(program.ops[op]);
  }
  if (!running_.empty()) {
    const Running& before = *running_.back();
    const auto& links =
        programs_.links[static_cast<int>(before.program->segment)][static_cast<int>(segment)];
    if (links.empty()) {
      progress_.wait(lock, [this] { return failure_ != nullptr || running_.back()->left == 0; });
      throw_if_failed(lock);
    }
    for (const plan::Link& link : links) {
      if (before.done[static_cast<std::size_t>(link.previous_op)]) continue;
      ++running->waiting[static_cast<std::size_t>(link.op)];
      running->linked.emplace_back(link.previous_op, link.op);
    }
  }
  std::sort(running->linked.begin(), running->linked.end());
  Running* raw = running.get();
  running_.push_back(std::move(running));
  for (std::size_t op = 0; op < program.ops.size(); ++op) {
    lanes_[index(program.ops[op].lane)].queue.push_back({raw, static_cast<int>(op)});
  }
  pump(lock);
}

// Issues what can be issued on the asynchronous lanes and wakes the lanes with threads. The lock is
// given up while a transfer is handed over, so everything is looked at again afterwards.
void Executor::pump(std::unique_lock<std::mutex>& lock) {
  bool again = true;
  while (again) {
    again = false;
    for (int lane = 0; lane < plan::kLanes; ++lane) {
      LaneQueue& queue = lanes_[lane];
      if (queue.queue.empty() || failure_ != nullptr || !ready(queue.queue.front())) continue;
      if (has_thread(static_cast<Lane>(lane))) {
        queue.wake.notify_one();
        continue;
      }
      const Ref ref = queue.queue.front();
      queue.queue.pop_front();
      begin_locked(ref);
      again = true;
      // Once issued, the op may be done, and with it the executor's last work, before this thread
      // has the lock again.
      ++pumping_;
      lock.unlock();
      issue(ref);
      lock.lock();
      if (--pumping_ == 0 && stop_) progress_.notify_all();
    }
  }
}

void Executor::worker(Lane lane) {
  LaneQueue& queue = lanes_[index(lane)];
  std::unique_lock lock(mutex_);
  while (true) {
    const double since = now_seconds();
    queue.wake.wait(lock, [&] {
      return stop_ || (failure_ == nullptr && !queue.queue.empty() && ready(queue.queue.front()));
    });
    if (stop_) return;
    const Ref ref = queue.queue.front();
    queue.queue.pop_front();
    begin_locked(ref);
    if (lane == Lane::kCompute) {  // between segments it has nothing to wait for
      const double now = now_seconds(), idle_since = std::max(since, ref.running->submitted);
      totals_[index(ref.running->last_lane[ref.op])].stall_seconds += now - idle_since;
      add_exposed_locked(idle_since, ref.running->held[ref.op], now);
    }
    lock.unlock();
    execute(lane, ref);
    lock.lock();
  }
}

void Executor::execute(Lane lane, const Ref& ref) {
  const Op& op = ref.running->program->ops[ref.op];
  const double start = now_seconds();
  std::exception_ptr error;
  try {
    if (options_.perturb) options_.perturb(op, ref.running->program->segment);
    if (op.kind == OpKind::kCommit && !ref.running->args.commits) {
      // A hold: the commit before stays the newest.
    } else if (op.kind == OpKind::kCommit) {
      std::exception_ptr sync_error;
      std::mutex done_mutex;
      std::condition_variable done;
      bool finished = false;
      tiers_.sync([&](const nvme::IoResult& result) {
        const std::lock_guard guard(done_mutex);
        if (!result.ok()) sync_error = std::make_exception_ptr(result.failure->to_error());
        finished = true;
        done.notify_one();
      });
      std::unique_lock guard(done_mutex);
      done.wait(guard, [&] { return finished; });
      if (sync_error) std::rethrow_exception(sync_error);
      if (options_.commit)
        options_.commit(ref.running->args.step, ref.running->args.version,
                        ref.running->args.write_slot);
    } else if (op.kind == OpKind::kUpdate) {
      update(ref);
    } else if (!absent(ref)) {
      runner_.run(op, ref.running->args);
    }
  } catch (...) {
    error = std::current_exception();
  }
  complete(ref, start, now_seconds() - start, std::move(error));
}

// Nothing that waits for the update is issued where a page that it has read was damaged.
void Executor::update(const Ref& ref) {
  const Segment segment = ref.running->program->segment;
  const SegmentArgs& args = ref.running->args;
  std::optional<optim::UpdatePages> pages = update_pages_.request(segment, ref.op, args);
  runner_.run(ref.running->program->ops[ref.op], args, pages ? &*pages : nullptr);
  if (!pages) return;
  update_pages_.verify(segment, ref.op, args, *pages);
  const std::lock_guard lock(mutex_);
  ref.running->summed.insert_or_assign(ref.op, std::move(*pages));
}

// What the update has summed of the states that this op writes; empty where it has not.
optim::UpdatePages Executor::take_sums(const Ref& ref) {
  const Op& op = ref.running->program->ops[ref.op];
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < op.operands.size(); ++i) {
    const int update = update_pages_.match(ref.running->program->segment, ref.op, i).update;
    if (update < 0) continue;
    auto node = ref.running->summed.extract(update);
    return node ? std::move(node.mapped()) : optim::UpdatePages{};
  }
  return {};
}

bool Executor::absent(const Ref& ref) const {
  const Op& op = ref.running->program->ops[ref.op];
  const data::StepBatch* batch = ref.running->args.batch;
  return op.micro_batch >= 0 && batch != nullptr &&
         op.micro_batch >= static_cast<int>(batch->micro_batches.size());
}

void Executor::issue(const Ref& ref) {
  const Op& op = ref.running->program->ops[ref.op];
  if (options_.perturb) options_.perturb(op, ref.running->program->segment);
  if (absent(ref)) {
    complete(ref, now_seconds(), 0, nullptr);
  } else if (op.kind == OpKind::kRead || op.kind == OpKind::kWrite) {
    issue_transfer(ref);
  } else {
    issue_copy(ref);
  }
}

// One op may move several ranges; it is done when the last of them is.
void Executor::issue_transfer(const Ref& ref) {
  struct Shared {
    std::atomic<int> left{1};
    std::atomic<bool> failed{false};
    std::mutex mutex;
    double busy = 0;
    std::exception_ptr error;
  };
  const Op& op = ref.running->program->ops[ref.op];
  const SegmentArgs& args = ref.running->args;
  optim::UpdatePages sums;
  if (op.kind == OpKind::kWrite) sums = take_sums(ref);
  const auto shared = std::make_shared<Shared>();
  const double start = now_seconds();
  const auto arrive = [this, ref, shared, start](const nvme::IoResult* result) {
    if (result != nullptr) {
      const std::lock_guard guard(shared->mutex);
      shared->busy += result->busy_seconds;
      if (!result->ok() && !shared->error)
        shared->error = std::make_exception_ptr(result->failure->to_error());
    }
    if (shared->left.fetch_sub(1) == 1)
      complete(ref, start, shared->busy, std::move(shared->error));
  };
  for (std::size_t i = 0; i < op.extents.size(); ++i) {
    const plan::ExtentRange& range = op.extents[i];
    const plan::Extent& extent = programs_.extents[range.extent];
    const bool moment =
        extent.kind == plan::ExtentKind::kState && runner_.starts_zero(extent.state);
    if (op.kind == OpKind::kRead && moment && args.scalars.moments_are_zero) continue;
    shared->left.fetch_add(1);
    const auto on_done = [arrive](const nvme::IoResult& result) { arrive(&result); };
    std::byte* memory = runner_.at(op.operands[i]);
    const UpdatePages::Match& match = update_pages_.match(ref.running->program->segment, ref.op, i);
    if (op.kind == OpKind::kRead && match.update >= 0) {
      tiers_.read_unverified(range.extent, args.read_slot, range.offset, memory, range.bytes,
                             on_done);
    } else if (op.kind == OpKind::kRead) {
      tiers_.read(range.extent, op.after_update ? args.write_slot : args.read_slot, range.offset,
                  memory, range.bytes, on_done);
    } else if (match.update >= 0 && tiers_.verifies()) {
      optim::StatePages& state = sums.state[static_cast<std::size_t>(match.state)];
      ZINF_CHECK(state.sum_after, "the update before the write has summed its pages");
      tiers_.write_hashed(range.extent, args.write_slot, range.offset, memory, range.bytes,
                          std::move(state.after), on_done);
    } else {
      tiers_.write(range.extent, args.write_slot, range.offset, memory, range.bytes, on_done);
    }
  }
  arrive(nullptr);
}

void Executor::issue_copy(const Ref& ref) {
  const Op& op = ref.running->program->ops[ref.op];
  std::vector<gpu::CopySegment> segments;
  for (std::size_t i = 0; i + 1 < op.operands.size(); i += 2) {
    segments.push_back(
        {runner_.at(op.operands[i + 1]), runner_.at(op.operands[i]), op.operands[i].bytes});
  }
  const double start = now_seconds();
  tiers_.device().copy(op.kind == OpKind::kCopyIn ? gpu::CopyDirection::kHostToDevice
                                                  : gpu::CopyDirection::kDeviceToHost,
                       std::move(segments),
                       [this, ref, start](double busy) { complete(ref, start, busy, nullptr); });
}

void Executor::complete(const Ref& ref, double start, double busy, std::exception_ptr error) {
  const Op& op = ref.running->program->ops[ref.op];
  if (options_.finished && !error) options_.finished(op, ref.running->program->segment);
  std::unique_lock lock(mutex_);
  LaneTotals& totals = totals_[index(op.lane)];
  totals.busy_seconds += busy;
  totals.bytes += op.bytes();
  if (options_.keep_timings)
    timings_.push_back({ref.running->program->segment, ref.op, start, now_seconds(), busy});
  end_locked(ref);
  // Moved, so that whoever is thrown the error is the one who destroys it.
  if (error && !failure_) failure_ = std::move(error);
  if (!failure_) finish_locked(ref);
  progress_.notify_all();
  if (!failure_) pump(lock);
}

void Executor::begin_locked(const Ref& ref) {
  ++in_flight_;
  begun_.push_back({ref, now_seconds()});
}

void Executor::end_locked(const Ref& ref) {
  --in_flight_;
  std::erase_if(begun_, [&](const Begun& begun) {
    return begun.ref.running == ref.running && begun.ref.op == ref.op;
  });
}

std::optional<Executor::Active> Executor::longest_active() const {
  const std::lock_guard lock(mutex_);
  if (begun_.empty()) return std::nullopt;
  const Begun& first =
      *std::min_element(begun_.begin(), begun_.end(),
                        [](const Begun& a, const Begun& b) { return a.since < b.since; });
  const Program& program = *first.ref.running->program;
  const Op& op = program.ops[static_cast<std::size_t>(first.ref.op)];
  return Active{op.lane, op.kind, program.segment, op.piece, op.stage, now_seconds() - first.since};
}

// What an op that is done now has waited for of the optimizer's work, queues included.
double Executor::held_until_locked(const Ref& ref, double now) {
  const Op& op = ref.running->program->ops[ref.op];
  LaneQueue& lane = lanes_[index(op.lane)];
  const double held = plan::optimizes(programs_, op) ? now : ref.running->held[ref.op];
  return lane.held = std::max(lane.held, held);
}

void Executor::add_exposed_locked(double idle_since, double held, double now) {
  totals_[index(Lane::kOptimizer)].exposed_seconds +=
      std::max(0.0, std::min(held, now) - idle_since);
}

void Executor::finish_locked(const Ref& ref) {
  Running& running = *ref.running;
  const Op& op = running.program->ops[ref.op];
  const Lane lane = op.lane;
  const double now = now_seconds();
  const double held = held_until_locked(ref, now);
  running.done[ref.op] = 1;
  --running.left;
  if (lane == Lane::kCompute) compute_idle_since_ = now;
  if (plan::decides(op) && --running.left_deciding == 0)
    add_exposed_locked(std::max(compute_idle_since_, running.submitted), held, now);
  const bool drains = running.program->segment == Segment::kUpdateOnly ||
                      running.program->segment == Segment::kRestOnly;
  if (drains && running.left == 0) add_exposed_locked(running.submitted, held, now);
  for (const int next : successors_[static_cast<int>(running.program->segment)][ref.op]) {
    running.held[next] = std::max(running.held[next], held);
    if (--running.waiting[next] == 0) running.last_lane[next] = lane;
  }
  // Edges into the segment that follows this one.
  for (std::size_t i = 0; i + 1 < running_.size(); ++i) {
    if (running_[i].get() != &running) continue;
    Running& following = *running_[i + 1];
    auto edge =
        std::lower_bound(following.linked.begin(), following.linked.end(), std::pair(ref.op, -1));
    for (; edge != following.linked.end() && edge->first == ref.op; ++edge) {
      following.held[edge->second] = std::max(following.held[edge->second], held);
      if (--following.waiting[edge->second] == 0) following.last_lane[edge->second] = lane;
    }
  }
}

// The newest segment stays, finished or not: the next one's links refer to it.
void Executor::reap_locked() {
  while (running_.size() > 1 && running_.front()->left == 0) running_.pop_front();
}

// Whoever is thrown the error may let go of the batch that ops in flight still read.
void Executor::throw_if_failed(std::unique_lock<std::mutex>& lock) {
  if (!failure_) return;
  progress_.wait(lock, [this] { return in_flight_ == 0; });
  std::rethrow_exception(failure_);
}

void Executor::abandon() {
  std::unique_lock lock(mutex_);
  if (!failure_)
    failure_ = std::make_exception_ptr(Error(ErrorKind::kFailed, "the programs were abandoned"));
  progress_.wait(lock, [this] { return in_flight_ == 0; });
}

void Executor::wait_all() {
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [this] {
    return failure_ || std::all_of(running_.begin(), running_.end(),
                                   [](const auto& running) { return running->left == 0; });
  });
  throw_if_failed(lock);
  reap_locked();
}

void Executor::wait_decision() {
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [this] {
    return failure_ || std::all_of(running_.begin(), running_.end(),
                                   [](const auto& running) { return running->left_deciding == 0; });
  });
  throw_if_failed(lock);
}

std::vector<LaneTotals> Executor::take_totals() {
  const std::lock_guard lock(mutex_);
  return std::exchange(totals_, std::vector<LaneTotals>(plan::kLanes));
}

std::vector<OpTiming> Executor::take_timings() {
  const std::lock_guard lock(mutex_);
  return std::exchange(timings_, {});
}

}  // namespace zinf::step
