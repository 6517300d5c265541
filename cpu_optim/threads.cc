#include "cpu_optim/threads.h"

#include <tbb/blocked_range.h>
#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "cpu_optim/state_schema.h"
#include "engine/base/error.h"
#include "engine/base/machine.h"
#include "engine/base/str.h"

namespace zinf::optim {

namespace {

// A range handed to a thread: small enough to balance, large enough that its start costs nothing.
constexpr std::int64_t kTilesPerRange = 8;

}  // namespace

int default_threads(int local_ranks) {
  return std::max(1, usable_physical_cores() / std::max(1, local_ranks));
}

#ifdef __SANITIZE_THREAD__

// Debian's oneTBB is not built for the thread sanitizer, which then sees races in its tasks and
// none in ours. Plain threads take its place in that build.
struct Pool::Arena {
  explicit Arena(int count) : threads(count) {}

  template <typename Work>
  void for_units(std::int64_t units, std::int64_t grain, const Work& work) {
    std::atomic<std::int64_t> next{0};
    std::mutex mutex;
    std::exception_ptr failure;
    const auto run = [&] {
      try {
        for (std::int64_t at = next.fetch_add(grain); at < units; at = next.fetch_add(grain))
          work(at, std::min(at + grain, units));
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
      }
    };
    std::vector<std::thread> workers;
    for (int i = 1; i < threads; ++i) workers.emplace_back(run);
    run();
    for (std::thread& worker : workers) worker.join();
    if (failure) std::rethrow_exception(failure);
  }

  const int threads;
};

#else

struct Pool::Arena {
  explicit Arena(int threads) : arena(threads) {
    // The library starts no more workers than it sees cores. Its limits combine to the lowest, so
    // one is only set where more are asked for.
    if (threads <= tbb::info::default_concurrency()) return;
    limit = std::make_unique<tbb::global_control>(tbb::global_control::max_allowed_parallelism,
                                                  static_cast<std::size_t>(threads));
  }

  template <typename Work>
  void for_units(std::int64_t units, std::int64_t grain, const Work& work) {
    arena.execute([&] {
      tbb::parallel_for(
          tbb::blocked_range<std::int64_t>(0, units, static_cast<std::size_t>(grain)),
          [&](const tbb::blocked_range<std::int64_t>& range) { work(range.begin(), range.end()); });
    });
  }

  std::unique_ptr<tbb::global_control> limit;
  tbb::task_arena arena;
};

#endif

Pool::Pool(int threads) : threads_(threads) {
  ZINF_CHECK(threads >= 1, str("a pool needs at least one thread, found ", threads));
  arena_ = std::make_unique<Arena>(threads);
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
  arena_->for_units(units, grain, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t begin = first * unit;
    const std::int64_t end = std::min(last * unit, elements);
    ZINF_CHECK(left.load() >= end - begin, "a range is handed out once");
    work(begin, end);
    left.fetch_sub(end - begin);
  });
  ZINF_CHECK(left.load() == 0, "every range is handed out");
}

}  // namespace zinf::optim
