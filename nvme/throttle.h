// Spaces transfers so that they keep to a rate, for tests and benchmarks.
#pragma once

#include <algorithm>

#include "engine/base/bytes.h"

namespace zinf::nvme {

class Throttle {
 public:
  // 0: no limit.
  explicit Throttle(double bytes_per_second) : rate_(bytes_per_second) {}
  bool may_start(double now) const { return rate_ <= 0 || now >= ready_at_; }
  double ready_at() const { return ready_at_; }
  void charge(Bytes bytes, double now) {
    // A late start is made up for up to kSlack, so that the mean rate holds although sleeps are
    // inexact.
    if (rate_ > 0)
      ready_at_ = std::max(ready_at_, now - kSlack) + static_cast<double>(bytes) / rate_;
  }

 private:
  static constexpr double kSlack = 0.01;
  double rate_;
  double ready_at_ = 0;
};

}  // namespace zinf::nvme
