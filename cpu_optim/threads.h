// The threads of the optimizer lane: a oneTBB arena of fixed size. Results never depend on their
// number.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace zinf::optim {

// This rank's share of the usable physical cores (affinity mask and CPU quota), at least 1: the
// second hardware thread of a core adds nothing to a loop that waits for memory. Thread variables
// that a launcher exports are not looked at.
int default_threads(int local_ranks = 1);

// Calls may come from any thread, but one at a time: the lane issues in order.
class Pool {
 public:
  explicit Pool(int threads = default_threads());
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }

  // Calls work(begin, end) for ranges that together cover [0, elements), each once, on the arena's
  // threads and the caller's, and returns when all are done. begin is a multiple of `unit`, which
  // by default is kTile. The first exception is rethrown.
  void for_ranges(std::int64_t elements,
                  const std::function<void(std::int64_t, std::int64_t)>& work) const;
  void for_ranges(std::int64_t elements, std::int64_t unit,
                  const std::function<void(std::int64_t, std::int64_t)>& work) const;
  // Calls work(i) for i in [0, count).
  void for_each(std::int64_t count, const std::function<void(std::int64_t)>& work) const;

 private:
  struct Arena;
  int threads_;
  std::unique_ptr<Arena> arena_;
};

}  // namespace zinf::optim
