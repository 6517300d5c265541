#include "cpu_optim/threads.h"

#include <sched.h>
#include <sys/syscall.h>
#include <tbb/blocked_range.h>
#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>
#include <tbb/task_scheduler_observer.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "cpu_optim/state_schema.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/machine.h"
#include "engine/base/str.h"

namespace zinf::optim {

namespace {

// A range handed to a thread: small enough to balance, large enough that its start costs nothing.
constexpr std::int64_t kTilesPerRange = 8;

constexpr Bytes kSmallPage = 4096, kHugePage = 2 * kMiB;

// Pages that are not there yet will come from this node. By the system call: the library around it
// would be one more to install.
bool prefer_node(int node, std::uintptr_t address, Bytes bytes) {
  constexpr int kPreferred = 1;  // MPOL_PREFERRED
  constexpr std::size_t kBits = 8 * sizeof(unsigned long);
  unsigned long nodes[1024 / kBits] = {};
  nodes[static_cast<std::size_t>(node) / kBits] = 1ul << static_cast<std::size_t>(node) % kBits;
  if (syscall(SYS_mbind, address, bytes, kPreferred, nodes, 8 * sizeof nodes, 0) == 0) return true;
  const std::string why = std::strerror(errno);
  static std::once_flag said;
  std::call_once(said, [&] {
    log::warning(
        str("memory is not placed by NUMA node (mbind: ", why,
            "), the optimizer will be slower; containers need CAP_SYS_NICE for it; or keep "
            "the run on one node: numactl --cpunodebind=0 --membind=0"));
  });
  return false;
}

// The processors of a node as a mask; empty where threads may run anywhere.
class Mask {
 public:
  explicit Mask(std::span<const int> processors) : size_(processors.size()) {
    CPU_ZERO(&set_);
    for (const int processor : processors) CPU_SET(static_cast<std::size_t>(processor), &set_);
  }
  bool empty() const { return size_ == 0; }
  // Of the calling thread.
  void apply() const { sched_setaffinity(0, sizeof set_, &set_); }

 private:
  cpu_set_t set_;
  std::size_t size_;
};

}  // namespace

int default_threads(int local_ranks) {
  return std::max(1, usable_physical_cores() / std::max(1, local_ranks));
}

#ifdef __SANITIZE_THREAD__

// Debian's oneTBB is not built for the thread sanitizer, which then sees races in its tasks and
// none in ours. Plain threads take its place in that build.
struct Pool::Limit {
  explicit Limit(int) {}
};
static int default_concurrency() { return std::numeric_limits<int>::max(); }

class Pool::Arena {
 public:
  Arena(int threads, std::span<const int> processors, bool) : count_(threads), mask_(processors) {}

  template <typename Work>
  void start(std::int64_t first, std::int64_t last, std::int64_t grain, const Work& work) {
    next_ = first;
    const auto run = [this, last, grain, &work] {
      if (!mask_.empty()) mask_.apply();
      try {
        for (std::int64_t at = next_.fetch_add(grain); at < last; at = next_.fetch_add(grain))
          work(at, std::min(at + grain, last));
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
      }
    };
    for (int i = 0; i < count_; ++i) workers_.emplace_back(run);
  }
  void finish() {
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  const int count_;
  const Mask mask_;
  std::atomic<std::int64_t> next_{0};
  std::mutex mutex_;
  std::exception_ptr failure_;
  std::vector<std::thread> workers_;
};

#else

// The library starts no more workers than it sees cores. Its limits combine to the lowest, so one
// is only set where more are asked for.
struct Pool::Limit {
  explicit Limit(int threads)
      : control(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(threads)) {}
  tbb::global_control control;
};
static int default_concurrency() { return tbb::info::default_concurrency(); }

// Keeps the threads of an arena on their node while they are in it.
class StayOn : public tbb::task_scheduler_observer {
 public:
  StayOn(tbb::task_arena& arena, std::span<const int> processors)
      : tbb::task_scheduler_observer(arena), mask_(processors) {
    observe(!mask_.empty());
  }
  ~StayOn() override { observe(false); }
  void on_scheduler_entry(bool) override {
    sched_getaffinity(0, sizeof before_, &before_);
    mask_.apply();
  }
  void on_scheduler_exit(bool) override { sched_setaffinity(0, sizeof before_, &before_); }

 private:
  const Mask mask_;
  static thread_local cpu_set_t before_;
};
thread_local cpu_set_t StayOn::before_;

class Pool::Arena {
 public:
  // The caller's thread is one of the first arena's, and helps the others when that is done.
  Arena(int threads, std::span<const int> processors, bool first)
      : arena_(threads, first ? 1 : 0), stay_(arena_, processors) {}

  template <typename Work>
  void start(std::int64_t first, std::int64_t last, std::int64_t grain, const Work& work) {
    const tbb::blocked_range<std::int64_t> whole(first, last, static_cast<std::size_t>(grain));
    arena_.execute([&] {
      group_.run([whole, &work] {
        tbb::parallel_for(whole, [&work](const tbb::blocked_range<std::int64_t>& range) {
          work(range.begin(), range.end());
        });
      });
    });
  }
  void finish() {
    arena_.execute([&] { group_.wait(); });
  }

 private:
  tbb::task_arena arena_;
  StayOn stay_;
  tbb::task_group group_;
};

#endif

Pool::Pool(int threads) : Pool(threads, usable_numa_nodes()) {}

Pool::Pool(int threads, const std::vector<NumaNode>& nodes) : threads_(threads) {
  ZINF_CHECK(threads >= 1, str("a pool needs at least one thread, found ", threads));
  if (threads > default_concurrency()) limit_ = std::make_unique<Limit>(threads);
  int cores = 0, cores_until = 0, until = 0;
  for (const NumaNode& node : nodes) cores += node.physical_cores;
  for (const NumaNode& node : nodes) {
    cores_until += node.physical_cores;
    const int own = threads * cores_until / cores - until;
    if (own == 0) continue;
    until += own;
    const bool alone = own == threads;
    const std::span<const int> stay = alone ? std::span<const int>() : std::span(node.processors);
    shares_.push_back({node.id, until, std::make_unique<Arena>(own, stay, shares_.empty())});
  }
}

Pool::~Pool() = default;

void Pool::for_ranges(std::int64_t elements,
                      const std::function<void(std::int64_t, std::int64_t)>& work) const {
  for_ranges(elements, kTile, work);
}

void Pool::for_each(std::int64_t count, const std::function<void(std::int64_t)>& work) const {
  for_ranges(count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) work(i);
  });
}

void Pool::for_ranges(std::int64_t elements, std::int64_t unit,
                      const std::function<void(std::int64_t, std::int64_t)>& work) const {
  ZINF_CHECK(unit >= 1, "ranges are cut somewhere");
  if (elements <= 0) return;
  const std::int64_t units = (elements + unit - 1) / unit;
  if (threads_ == 1 || units == 1) return work(0, elements);
  const std::int64_t grain =
      unit == 1 ? 1 : std::max<std::int64_t>(1, kTilesPerRange * kTile / unit);
  std::atomic<std::int64_t> left{elements};  // to do
  const auto run = [&](std::int64_t first, std::int64_t last) {
    const std::int64_t begin = first * unit;
    const std::int64_t end = std::min(last * unit, elements);
    ZINF_CHECK(left.load() >= end - begin, "a range is handed out once");
    work(begin, end);
    left.fetch_sub(end - begin);
  };
  std::int64_t first = 0;
  for (const Share& share : shares_) {
    const std::int64_t last = end_of(share, units);
    if (last > first) share.arena->start(first, last, grain, run);
    first = last;
  }
  std::exception_ptr failure;
  for (const Share& share : shares_) {
    try {
      share.arena->finish();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
  ZINF_CHECK(left.load() == 0, "every range is handed out");
}

void Pool::place(std::byte* data, Bytes bytes) const {
  if (shares_.size() == 1) return;
  const auto start = reinterpret_cast<std::uintptr_t>(data);
  std::uintptr_t from = round_up(start, kSmallPage);
  for (const Share& share : shares_) {
    const std::uintptr_t until =
        start + static_cast<Bytes>(end_of(share, static_cast<std::int64_t>(bytes)));
    const std::uintptr_t to = share.until == threads_
                                  ? start + bytes
                                  : std::min(round_up(until, kHugePage), start + bytes);
    if (to > from && !prefer_node(share.node, from, to - from)) return;
    from = std::max(from, to);
  }
}

}  // namespace zinf::optim
