// Backpressure over random programs of requests, each submitted when those that it waits for are
// done. The engine has no drive: it completes what it holds in any order, takes fewer blocks than
// it is offered, and holds every block against what must be true when it is offered. All requests
// are submitted by callbacks, that is by the lane's thread, so what the lane knows is known here.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <deque>
#include <vector>

#include "engine/base/str.h"
#include "nvme/io_lane.h"
#include "tests/nvme/test_support.h"
#include "tests/step/watchdog.h"

namespace zinf::nvme {
namespace {

constexpr Bytes kBlock = 4096;

class Draws {
 public:
  explicit Draws(std::uint64_t seed) : key_(random_key(seed, 23)) {}
  int below(int bound) {
    return static_cast<int>(random_below(key_, next_++, static_cast<std::uint64_t>(bound)));
  }

 private:
  std::uint64_t key_, next_ = 0;
};

struct Request {
  IoOp op = IoOp::kRead;
  int blocks = 0;  // 0: a sync
  int waits_for = 0;
  std::vector<int> then;  // wait for this one
  bool done = false;
};

std::vector<Request> random_program(Draws& draw) {
  std::vector<Request> program(static_cast<std::size_t>(10 + draw.below(50)));
  const int breadth = 1 + draw.below(12);  // how far back a request's dependencies reach
  for (int i = 0; i < static_cast<int>(program.size()); ++i) {
    Request& request = program[static_cast<std::size_t>(i)];
    const int kind = draw.below(9);
    request.op = kind < 4 ? IoOp::kRead : kind < 8 ? IoOp::kWrite : IoOp::kSync;
    request.blocks = request.op == IoOp::kSync ? 0 : 1 + draw.below(6);
    for (int d = draw.below(3); d > 0 && i > 0; --d) {
      program[static_cast<std::size_t>(i - 1 - draw.below(std::min(i, breadth)))].then.push_back(i);
      ++request.waits_for;
    }
  }
  return program;
}

// The lane as it should be: which blocks wait, and what may be issued.
class Model {
 public:
  explicit Model(int depth) : depth_(depth) {}

  void submitted(IoOp op, int blocks) {
    if (op == IoOp::kRead) {
      reads_ += blocks;
    } else {
      writes_.push_back(blocks);
    }
  }

  // The lane hands a block to the engine for the first time.
  void issued(IoOp op) {
    if (++open_ > depth_) fail(str(open_, " blocks in flight at depth ", depth_));
    const bool write_ready = may_write();
    if (op == IoOp::kRead) {
      reads_in_a_row_ = write_ready ? reads_in_a_row_ + 1 : 0;
      if (--reads_ < 0) fail("a read that nobody asked for");
      if (reads_in_a_row_ > IoLane::kReadsPerWrite) fail("reads starve a write");
      return;
    }
    if (!write_ready || (op == IoOp::kSync) != (writes_.front() == 0))
      return fail("a write or sync out of its turn");
    if (reads_ > 0 && reads_in_a_row_ < IoLane::kReadsPerWrite)
      fail(str("a write before ", reads_, " reads that wait"));
    reads_in_a_row_ = 0;
    ++writes_open_;
    if (op == IoOp::kSync || --writes_.front() == 0) writes_.pop_front();
  }

  void completed(IoOp op) {
    --open_;
    writes_open_ -= op != IoOp::kRead;
  }

  // The lane goes to wait for completions.
  void rests() {
    if (open_ < depth_ && (reads_ > 0 || may_write()))
      fail(str("only ", open_, " blocks in flight at depth ", depth_, " while others wait"));
    if (open_ == depth_) ++full_;
  }

  int full() const { return full_; }  // how often all credits were used
  const std::string& failure() const { return failure_; }

 private:
  bool may_write() const { return !writes_.empty() && (writes_.front() > 0 || writes_open_ == 0); }
  void fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }

  const int depth_;
  int reads_ = 0;           // blocks that wait
  std::deque<int> writes_;  // blocks that wait, by request; 0: a sync
  int open_ = 0, writes_open_ = 0, reads_in_a_row_ = 0, full_ = 0;
  std::string failure_;
};

class DrivelessEngine final : public IoEngine {
 public:
  DrivelessEngine(int depth, std::uint64_t seed, Model& model)
      : depth_(depth), draw_(seed), model_(model) {}
  std::string_view name() const override { return "driveless"; }
  EngineLimits limits() const override { return {depth_, kGiB}; }
  int add_file(int) override { return 0; }

  std::size_t submit(std::span<const IoBlock> blocks) override {
    for (std::size_t i = refused_; i < blocks.size(); ++i) model_.issued(blocks[i].op);
    // Never nothing, for then the lane would rest for a millisecond.
    const std::size_t taken =
        draw_.below(3) > 0
            ? blocks.size()
            : 1 + static_cast<std::size_t>(draw_.below(static_cast<int>(blocks.size())));
    held_.insert(held_.end(), blocks.begin(), blocks.begin() + static_cast<std::ptrdiff_t>(taken));
    refused_ = blocks.size() - taken;
    return taken;
  }

  std::size_t reap(std::span<IoCompletion> out, double) override {
    model_.rests();
    std::size_t count = 0;
    for (int wanted = draw_.below(4); wanted > 0 && !held_.empty() && count < out.size();
         --wanted) {
      const int which = draw_.below(static_cast<int>(held_.size()));
      const IoBlock block = held_[static_cast<std::size_t>(which)];
      held_.erase(held_.begin() + which);
      model_.completed(block.op);
      out[count++] = {block.tag, static_cast<std::int64_t>(block.bytes)};
    }
    return count;
  }

  int in_flight() const override { return static_cast<int>(held_.size()); }
  void wake() override {}

 private:
  const int depth_;
  Draws draw_;
  Model& model_;
  std::vector<IoBlock> held_;
  std::size_t refused_ = 0;  // of the last offer; they come first in the next one
};

// What is wrong with the seed's run; `full` counts how often all credits were used.
std::string run_program(std::uint64_t seed, int descriptor, Memory& memory, int& full) {
  Draws draw(seed);
  const int depth = 1 + draw.below(8);
  std::vector<Request> program = random_program(draw);
  Model model(depth);
  LaneOptions options;
  options.engine = {EngineKind::kThreads, depth, 1};
  options.block_size = kBlock;
  options.wrap_engine = [&](std::unique_ptr<IoEngine>) {
    return std::make_unique<DrivelessEngine>(depth, seed + 1, model);
  };
  std::size_t left = program.size();
  std::string failure;
  std::promise<void> finished;
  {
    IoLane lane(options);
    const FileId file = lane.add_file({descriptor, "no file", kBlock});
    std::function<void(int)> start = [&](int i) {
      const Request& request = program[static_cast<std::size_t>(i)];
      const auto done = [&, i](const IoResult& result) {
        Request& ended = program[static_cast<std::size_t>(i)];
        if (!result.ok() || ended.done) failure = str("request ", i, " failed or came twice");
        ended.done = true;
        for (const int next : ended.then) {
          if (--program[static_cast<std::size_t>(next)].waits_for == 0) start(next);
        }
        if (--left == 0) finished.set_value();
      };
      model.submitted(request.op, request.blocks);
      if (request.op == IoOp::kSync) return lane.sync(file, done);
      lane.submit({file, 0, memory.data(), kBlock * static_cast<Bytes>(request.blocks),
                   request.op == IoOp::kWrite, done});
    };
    // Those that wait for nothing, before any other runs.
    std::vector<int> first;
    for (int i = 0; i < static_cast<int>(program.size()); ++i) {
      if (program[static_cast<std::size_t>(i)].waits_for == 0) first.push_back(i);
    }
    lane.submit({file, 0, nullptr, 0, false, [&](const IoResult&) {
                   for (const int i : first) start(i);
                 }});
    finished.get_future().wait();
  }
  full += model.full();
  return model.failure().empty() ? failure : model.failure();
}

TEST(Backpressure, RandomProgramsKeepToTheirCreditsReadFirstAndEnd) {
  const testing::Watchdog watchdog("backpressure", std::chrono::seconds(120));
  Memory memory(6 * kBlock);
  const int descriptor = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  int full = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    ASSERT_EQ(run_program(seed, descriptor, memory, full), "") << "seed " << seed;
  }
  ::close(descriptor);
  EXPECT_GT(full, 3000);
}

}  // namespace
}  // namespace zinf::nvme
