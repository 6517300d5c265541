// Which block a lane issues next. Plain data without threads or I/O, so that a test can drive it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "engine/base/bytes.h"
#include "nvme/io_lane.h"

namespace zinf::nvme {

// A request on its way. It is finished when nothing is in flight and it is issued wholly or has
// failed.
struct Transfer {
  IoRequest request;
  IoOp op = IoOp::kRead;
  Bytes issued = 0;  // cut into blocks so far
  bool sync_issued = false;
  int in_flight = 0;
  std::shared_ptr<const IoFailure> failure;
  double busy_seconds = 0;

  bool all_issued() const { return op == IoOp::kSync ? sync_issued : issued == request.bytes; }
  bool finished() const { return in_flight == 0 && (failure != nullptr || all_issued()); }
};

using TransferRef = std::shared_ptr<Transfer>;  // shared by the queue and the blocks in flight

// The next block of a transfer.
struct NextBlock {
  TransferRef transfer;
  Bytes at = 0;  // within the request
  Bytes bytes = 0;
};

class BlockQueue {
 public:
  explicit BlockQueue(Bytes block_size) : block_size_(block_size) {}

  void push(TransferRef transfer);
  // Empty transfer: nothing may be issued now. Reads come first, but after kReadsPerWrite of them
  // in a row a waiting write has its turn. A sync waits until `writes_in_flight` is 0 and holds
  // later writes back.
  NextBlock pop(bool may_read, bool may_write, int writes_in_flight);
  // A failed transfer gives up its remaining blocks.
  void drop(const TransferRef& transfer);
  bool empty() const { return reads_.empty() && writes_.empty(); }
  // Takes everything out, for a lane that is dead.
  std::deque<TransferRef> take_all();

 private:
  NextBlock pop_from(std::deque<TransferRef>& queue);

  Bytes block_size_;
  std::deque<TransferRef> reads_;
  std::deque<TransferRef> writes_;  // and syncs
  int reads_in_a_row_ = 0;
};

}  // namespace zinf::nvme
