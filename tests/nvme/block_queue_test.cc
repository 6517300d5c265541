#include "nvme/block_queue.h"

#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <utility>

#include "engine/base/random.h"

namespace zinf::nvme {
namespace {

TransferRef transfer(IoOp op, Bytes bytes) {
  auto made = std::make_shared<Transfer>();
  made->op = op;
  made->request.bytes = bytes;
  return made;
}

// What comes out, a letter a block: r, w, s.
std::string drain(BlockQueue& queue, bool may_read = true, bool may_write = true) {
  std::string out;
  for (NextBlock next; (next = queue.pop(may_read, may_write, 0)).transfer;) {
    out += next.transfer->op == IoOp::kRead ? 'r' : next.transfer->op == IoOp::kWrite ? 'w' : 's';
  }
  return out;
}

TEST(BlockQueue, CutsRequestsAndKeepsTheLastShortBlock) {
  BlockQueue queue(kMiB);
  queue.push(transfer(IoOp::kRead, 2 * kMiB + 4096));
  for (const Bytes bytes : {kMiB, kMiB, Bytes{4096}}) {
    const NextBlock next = queue.pop(true, true, 0);
    EXPECT_EQ(next.bytes, bytes);
  }
  EXPECT_TRUE(queue.empty());
}

TEST(BlockQueue, ReadsGoFirstButDoNotStarveWrites) {
  BlockQueue queue(4096);
  queue.push(transfer(IoOp::kWrite, 3 * 4096));
  queue.push(transfer(IoOp::kRead, 8 * 4096));
  EXPECT_EQ(drain(queue), "rrrwrrrwrrw");
}

TEST(BlockQueue, AThrottledDirectionLetsTheOtherPass) {
  BlockQueue queue(4096);
  queue.push(transfer(IoOp::kWrite, 2 * 4096));
  queue.push(transfer(IoOp::kRead, 2 * 4096));
  EXPECT_EQ(drain(queue, false, true), "ww");
  EXPECT_EQ(drain(queue, false, false), "");
  EXPECT_EQ(drain(queue, true, false), "rr");
}

TEST(BlockQueue, ASyncWaitsForEarlierWritesAndHoldsLaterOnesBack) {
  BlockQueue queue(4096);
  queue.push(transfer(IoOp::kWrite, 4096));
  queue.push(transfer(IoOp::kSync, 0));
  queue.push(transfer(IoOp::kWrite, 4096));
  queue.push(transfer(IoOp::kRead, 4096));
  EXPECT_EQ(queue.pop(true, true, 0).transfer->op, IoOp::kRead);
  EXPECT_EQ(queue.pop(true, true, 0).transfer->op, IoOp::kWrite);
  EXPECT_EQ(queue.pop(true, true, 1).transfer, nullptr);
  EXPECT_EQ(queue.pop(true, true, 0).transfer->op, IoOp::kSync);
  EXPECT_EQ(queue.pop(true, true, 1).transfer->op, IoOp::kWrite);
}

TEST(BlockQueue, AFailedTransferGivesUpItsRest) {
  BlockQueue queue(4096);
  const TransferRef failing = transfer(IoOp::kWrite, 3 * 4096), next = transfer(IoOp::kWrite, 4096);
  queue.push(failing);
  queue.push(next);
  EXPECT_EQ(queue.pop(true, true, 0).transfer, failing);
  queue.drop(failing);
  EXPECT_EQ(queue.pop(true, true, 0).transfer, next);
  EXPECT_TRUE(queue.empty());
}

// Random pushes and pops beside what must hold: each byte comes once and in order, reads and writes
// each in the order of their requests, and a waiting write within kReadsPerWrite reads.
TEST(BlockQueue, RandomTrafficKeepsOrderAndFairness) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    std::uint64_t draws = 0;
    const auto below = [&](std::uint64_t bound) {
      return random_below(random_key(seed, 5), draws++, bound);
    };
    BlockQueue queue(4096 << below(3));
    std::deque<std::pair<TransferRef, Bytes>>
        expected[2];  // reads, writes and syncs: with the bytes already issued
    int pushed = 0, reads_in_a_row = 0;
    while (pushed < 40 || !queue.empty()) {
      if (pushed < 40 && below(3) == 0) {
        const IoOp op = static_cast<IoOp>(below(3));
        const TransferRef made = transfer(op, op == IoOp::kSync ? 0 : 4096 * (1 + below(6)));
        expected[op != IoOp::kRead].push_back({made, 0});
        queue.push(made);
        ++pushed;
      }
      const bool may_read = below(8) > 0, may_write = below(8) > 0;
      const NextBlock next = queue.pop(may_read, may_write, 0);
      if (!next.transfer) continue;
      auto& line = expected[next.transfer->op != IoOp::kRead];
      ASSERT_EQ(next.transfer, line.front().first) << "seed " << seed;
      ASSERT_EQ(next.at, line.front().second);
      line.front().second += next.bytes;
      if (line.front().second == next.transfer->request.bytes) line.pop_front();
      const auto& writes = expected[1];
      const bool write_waits =
          !writes.empty() && (may_write || writes.front().first->op == IoOp::kSync);
      reads_in_a_row = next.transfer->op == IoOp::kRead && write_waits ? reads_in_a_row + 1 : 0;
      ASSERT_LE(reads_in_a_row, IoLane::kReadsPerWrite);
    }
    EXPECT_TRUE(expected[0].empty() && expected[1].empty());
  }
}

// Field case 003: counts are 64-bit. 2^31 + 64 fp32 elements in blocks of 1 MiB.
TEST(BlockQueue, CountsBeyond32Bits) {
  BlockQueue queue(kMiB);
  queue.push(transfer(IoOp::kRead, 8589934848));
  Bytes total = 0, blocks = 0;
  for (NextBlock next; (next = queue.pop(true, true, 0)).transfer;) {
    EXPECT_EQ(next.at, total);
    total += next.bytes;
    ++blocks;
  }
  EXPECT_EQ(total, 8589934848u);
  EXPECT_EQ(blocks, 8193u);
}

}  // namespace
}  // namespace zinf::nvme
