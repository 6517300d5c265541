// Where a byte of the store lies: logical space cut into stripe units, dealt to drives in a
// repeating cycle in which drive d has counts[d] units. Pure arithmetic.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/bytes.h"

namespace zinf::nvme {

// The smallest whole numbers, at most 128 in all, whose ratios are the weights within half a
// percent (else the closest). Weights are positive and finite, at most 64 of them.
std::vector<std::uint32_t> stripe_counts(const std::vector<double>& weights);

// The same for `total` bytes where drives have only so much room: one whose share is larger than
// its room gets what fits, and the others take the rest in the ratios of their weights. As above
// where that can't be done: `total` is more than all have room for, or nearly so.
std::vector<std::uint32_t> stripe_counts(const std::vector<double>& weights,
                                         const std::vector<Bytes>& room, Bytes total, Bytes unit);

struct StripeSegment {
  std::size_t drive = 0;
  std::uint64_t offset = 0;  // within the drive's data
  Bytes at = 0;              // within the range asked for
  Bytes bytes = 0;
};

class StripeMap {
 public:
  StripeMap(std::vector<std::uint32_t> counts, Bytes unit);

  const std::vector<std::uint32_t>& counts() const { return counts_; }
  // The segment at the start of [offset, offset + bytes), as long as it lies on one drive without a
  // gap.
  StripeSegment first(std::uint64_t offset, Bytes bytes) const;
  // Bytes of [0, total) that lie on the drive.
  Bytes drive_bytes(std::size_t drive, Bytes total) const;

 private:
  std::vector<std::uint32_t> counts_;
  Bytes unit_;
  std::vector<std::uint32_t> order_;  // drive of each unit of the cycle
  std::vector<std::uint32_t> rank_;   // how many units of that drive come before it in the cycle
};

}  // namespace zinf::nvme
