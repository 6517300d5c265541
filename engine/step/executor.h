// Runs programs on real lanes. A lane issues its ops in program order as soon as what they wait for
// is done; reads, writes and copies complete asynchronously, compute, optimizer and commits each
// have a thread. Segments may be submitted before the one before has finished: links carry the
// order across the border.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/plan/program.h"
#include "engine/step/op_runner.h"
#include "engine/step/update_pages.h"
#include "swap/tiers.h"

namespace zinf::step {

// When one op ran, in seconds of the monotonic clock. busy is its stand-alone time, as its lane
// measures it.
struct OpTiming {
  plan::Segment segment;
  int op = 0;
  double start = 0;  // issued (asynchronous lanes) or begun
  double end = 0;
  double busy = 0;
};

struct LaneTotals {
  double busy_seconds = 0;
  double stall_seconds = 0;  // of the compute lane's waits, those that this lane's op ended
  // Of the optimizer's lane: plan::Forecast::exposed_optimizer_seconds, as it was.
  double exposed_seconds = 0;
  Bytes bytes = 0;
};

struct ExecutorOptions {
  // Pages that an update reads and writes are verified and hashed by it, while they are in cache;
  // false: by the I/O lanes, as all others are. The checksums are the same.
  bool verify_in_update = true;
  bool keep_timings = false;  // for traces and tests; take_timings() empties them
  std::function<void(std::int64_t step, std::int64_t version, int slot)>
      commit;  // publishes a commit, after the store's sync
  std::function<void(const plan::Op&, plan::Segment)>
      perturb;  // tests: called in a lane's thread before each op
  // Tests: called in a lane's thread after each op, before anything that waits for it may start.
  std::function<void(const plan::Op&, plan::Segment)> finished;
};

class Executor {
 public:
  using Segment = plan::Segment;

  // Everything passed in outlives the executor.
  Executor(const plan::ProgramSet& programs, swap::Tiers& tiers, OpRunner& runner,
           ExecutorOptions options);
  ~Executor();  // waits for what is in flight

  // Queues a segment. It must follow the one submitted before in canonical state. Waits only when
  // two earlier segments are still running. args.batch and args.row_batch must outlive the segment,
  // or the call that throws, after which no op is in flight.
  void submit(Segment segment, const SegmentArgs& args);
  // Returns when every op of all submitted segments (wait_all), or every op that the border's
  // decision needs (wait_decision: compute, norms, sums of rows) is done. Rethrows the first error
  // of any op; after an error nothing more is issued.
  void wait_all();
  void wait_decision();
  // Issues nothing more and returns when nothing is in flight: for who has to let go of a batch
  // without having waited for its segments. Only the destructor may follow.
  void abandon();

  const plan::ProgramSet& programs() const { return programs_; }
  gpu::Device& device() { return tiers_.device(); }

  // The op that has been running or in flight for longest. Any thread. See activity.h.
  struct Active {
    plan::Lane lane;
    plan::OpKind kind;
    plan::Segment segment;
    int piece = -1, stage = -1;
    double seconds = 0;
  };
  std::optional<Active> longest_active() const;

  // Since the last call.
  std::vector<LaneTotals> take_totals();
  std::vector<OpTiming> take_timings();

 private:
  struct Running {
    const plan::Program* program = nullptr;
    SegmentArgs args;
    std::vector<int> waiting;  // unfinished ops that an op waits for
    std::vector<char> done;
    std::vector<plan::Lane> last_lane;  // the lane of the op that ended the wait
    std::vector<double> held;  // when the latest optimizer's work that an op waited for was done
    double submitted = 0;
    std::map<int, optim::UpdatePages> summed;  // by updates whose write has not been issued
    std::vector<std::pair<int, int>> linked;   // (previous op, op) edges into this segment
    std::size_t left = 0;
    std::size_t left_deciding = 0;
  };
  struct Ref {
    Running* running = nullptr;
    int op = -1;
  };
  struct LaneQueue {
    std::deque<Ref> queue;
    std::condition_variable wake;
    double held = 0;  // as Running::held, of the ops of this lane
  };

  void worker(plan::Lane lane);
  void execute(plan::Lane lane, const Ref& ref);
  void pump(std::unique_lock<std::mutex>& lock);
  void issue(const Ref& ref);
  void issue_transfer(const Ref& ref);
  void issue_copy(const Ref& ref);
  void update(const Ref& ref);
  optim::UpdatePages take_sums(const Ref& ref);
  void complete(const Ref& ref, double start, double busy, std::exception_ptr error);
  void begin_locked(const Ref& ref);
  void end_locked(const Ref& ref);
  void finish_locked(const Ref& ref);
  double held_until_locked(const Ref& ref, double now);
  void add_exposed_locked(double idle_since, double held, double now);
  bool ready(const Ref& ref) const { return ref.running->waiting[ref.op] == 0; }
  bool absent(const Ref& ref) const;
  void successors_of(const plan::Program& program);
  void reap_locked();
  void throw_if_failed(std::unique_lock<std::mutex>& lock);

  const plan::ProgramSet& programs_;
  swap::Tiers& tiers_;
  OpRunner& runner_;
  ExecutorOptions options_;
  UpdatePages update_pages_;
  std::vector<std::vector<std::vector<int>>> successors_;  // per segment, per op
  mutable std::mutex mutex_;
  std::condition_variable progress_;
  std::deque<std::unique_ptr<Running>> running_;
  std::vector<LaneQueue> lanes_;
  std::exception_ptr failure_;
  bool stop_ = false;
  std::size_t in_flight_ = 0;
  struct Begun {
    Ref ref;
    double since = 0;
  };
  std::vector<Begun> begun_;  // the ops in flight: few
  std::size_t pumping_ = 0;   // threads between issuing an op and taking the lock again
  std::vector<LaneTotals> totals_;
  double compute_idle_since_ = 0;
  std::vector<OpTiming> timings_;
  std::vector<std::thread> threads_;
};

}  // namespace zinf::step
