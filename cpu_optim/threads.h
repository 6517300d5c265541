// The threads of the optimizer lane: a oneTBB arena of fixed size on each NUMA node. Results never
// depend on how many they are, nor where.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/base/machine.h"

namespace zinf::optim {

// This rank's share of the usable physical cores (affinity mask and CPU quota), at least 1: the
// second hardware thread of a core adds nothing to a loop that waits for memory. Thread variables
// that a launcher exports are not looked at.
int default_threads(int local_ranks = 1);

// Calls may come from any thread, but one at a time: the lane issues in order.
class Pool {
 public:
  explicit Pool(int threads = default_threads());
  // Threads go to the nodes by their cores. Where that makes several nodes, each one's threads stay
  // on its processors.
  Pool(int threads, const std::vector<NumaNode>& nodes);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }
  int nodes() const { return static_cast<int>(shares_.size()); }  // that have threads

  // Calls work(begin, end) for ranges that together cover [0, elements), each once, on the arena's
  // threads and the caller's, and returns when all are done. begin is a multiple of `unit`, which
  // by default is kTile. Each node gets one contiguous share, of ranges of one length always the
  // same. The first exception is rethrown.
  void for_ranges(std::int64_t elements,
                  const std::function<void(std::int64_t, std::int64_t)>& work) const;
  void for_ranges(std::int64_t elements, std::int64_t unit,
                  const std::function<void(std::int64_t, std::int64_t)>& work) const;
  // Calls work(i) for i in [0, count).
  void for_each(std::int64_t count, const std::function<void(std::int64_t)>& work) const;

  // Of an array that ranges are made of, not touched yet: each node's share will lie in its own
  // memory, while there is any; in whole huge pages. Nothing to do on one node. Where the system
  // does not allow it, that is said once.
  void place(std::byte* data, Bytes bytes) const;

 private:
  class Arena;
  struct Limit;
  struct Share {
    int node = 0;
    int until = 0;  // threads of this node and those before it
    std::unique_ptr<Arena> arena;
  };
  // The part of `whole` that comes before the end of this share.
  std::int64_t end_of(const Share& share, std::int64_t whole) const {
    return whole / threads_ * share.until + whole % threads_ * share.until / threads_;
  }

  int threads_;
  std::unique_ptr<Limit> limit_;
  std::vector<Share> shares_;
};

}  // namespace zinf::optim
