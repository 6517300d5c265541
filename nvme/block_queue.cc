#include "nvme/block_queue.h"

#include <algorithm>
#include <utility>

namespace zinf::nvme {

void BlockQueue::push(TransferRef transfer) {
  auto& queue = transfer->op == IoOp::kRead ? reads_ : writes_;
  queue.push_back(std::move(transfer));
}

NextBlock BlockQueue::pop(bool may_read, bool may_write, int writes_in_flight) {
  const bool write_ready =
      !writes_.empty() && (writes_.front()->op == IoOp::kSync ? writes_in_flight == 0 : may_write);
  const bool read_ready = !reads_.empty() && may_read;
  if (read_ready && (!write_ready || reads_in_a_row_ < IoLane::kReadsPerWrite)) {
    reads_in_a_row_ = write_ready ? reads_in_a_row_ + 1 : 0;
    return pop_from(reads_);
  }
  if (!write_ready) return {};
  reads_in_a_row_ = 0;
  return pop_from(writes_);
}

NextBlock BlockQueue::pop_from(std::deque<TransferRef>& queue) {
  NextBlock next{queue.front(), queue.front()->issued, 0};
  Transfer& transfer = *next.transfer;
  if (transfer.op == IoOp::kSync) {
    transfer.sync_issued = true;
  } else {
    next.bytes = std::min(block_size_, transfer.request.bytes - transfer.issued);
    transfer.issued += next.bytes;
  }
  if (transfer.all_issued()) queue.pop_front();
  return next;
}

void BlockQueue::drop(const TransferRef& transfer) {
  auto& queue = transfer->op == IoOp::kRead ? reads_ : writes_;
  // Only the front of a queue is ever partly issued.
  if (!queue.empty() && queue.front() == transfer) queue.pop_front();
}

std::deque<TransferRef> BlockQueue::take_all() {
  std::deque<TransferRef> all = std::move(reads_);
  reads_.clear();
  for (TransferRef& transfer : writes_) all.push_back(std::move(transfer));
  writes_.clear();
  return all;
}

}  // namespace zinf::nvme
