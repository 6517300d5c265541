#include "nvme/lane_worker.h"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <limits>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/str.h"
#include "nvme/block_queue.h"
#include "nvme/io_failure.h"
#include "nvme/throttle.h"

namespace zinf::nvme {

namespace {

constexpr int kMostRetries = 100;    // of one block, without a byte of progress
constexpr int kQuietRetries = 4;     // this many at once, then with a pause of a millisecond
constexpr int kMostRefusals = 5000;  // milliseconds in which the kernel takes no block at all

struct Slot {
  TransferRef transfer;  // empty: the slot is free
  Bytes at = 0;          // what is left of the block, within the request
  Bytes bytes = 0;
  int fruitless = 0;  // attempts without progress
};

struct WorkerFile {
  std::shared_ptr<const LaneFile> file;
  int engine_file = -1;
};

void pause_briefly() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

class LaneWorker {
 public:
  LaneWorker(const LaneOptions& options, LaneInbox& inbox, std::unique_ptr<IoEngine> engine)
      : options_(options),
        inbox_(inbox),
        engine_(std::move(engine)),
        queue_(options.block_size),
        read_throttle_(options.read_bytes_per_second),
        write_throttle_(options.write_bytes_per_second) {
    const auto depth =
        static_cast<std::size_t>(std::min(options.engine.depth, engine_->limits().depth));
    slots_.resize(depth);
    for (std::size_t i = depth; i-- > 0;) free_.push_back(i);
    completions_.resize(depth);
  }

  ~LaneWorker() {
    // An engine's end waits for its blocks, and a hung drive never gives them back. The kernel
    // holds on to their pages by itself, so we leave without waiting; the engine is lost, as is the
    // run.
    if (dead_ && engine_->in_flight() > 0) engine_.release()->abandon();
  }
  LaneWorker(const LaneWorker&) = delete;
  LaneWorker& operator=(const LaneWorker&) = delete;

  void run() {
    for (;;) {
      const bool stopping = take_news();
      issue();
      if (in_flight() > 0) {
        reap();
      } else if (!unsent_.empty()) {
        continue;  // the kernel took nothing: issue() has paused and tries again
      } else if (!queue_.empty()) {
        inbox_.wait(std::max(0.0, throttle_opens() - now_seconds()));
      } else if (!stopping) {
        idle();
      } else if (inbox_.quiet()) {
        return;
      }
    }
  }

 private:
  std::size_t in_flight() const { return slots_.size() - free_.size() - unsent_.size() - lost_; }

  // True when the lane is to stop once it has nothing left to do.
  bool take_news() {
    LaneInbox::News news = inbox_.take();
    for (const auto memory : news.memory) {
      counters_.pinned_bytes += engine_->add_memory(memory);
      inbox_.publish(counters_);
    }
    for (auto& file : news.files) {
      const int engine_file = engine_->add_file(file->descriptor);
      files_.push_back({std::move(file), engine_file});
    }
    for (TransferRef& transfer : news.transfers) {
      if (busy_since_ < 0) busy_since_ = now_seconds();
      if (dead_) {
        transfer->failure = dead_;
        finish(*transfer);
      } else if (transfer->op != IoOp::kSync && transfer->request.bytes == 0) {
        finish(*transfer);
      } else {
        queue_.push(std::move(transfer));
      }
    }
    return news.stopping;
  }

  void idle() {
    busy_since_ = -1;
    inbox_.wait(-1);
  }

  double throttle_opens() const {
    const double now = now_seconds();
    double opens = std::numeric_limits<double>::infinity();
    for (const Throttle* throttle : {&read_throttle_, &write_throttle_}) {
      if (!throttle->may_start(now)) opens = std::min(opens, throttle->ready_at());
    }
    return opens == std::numeric_limits<double>::infinity() ? now : opens;
  }

  void issue() {
    const double now = now_seconds();
    while (!free_.empty() && !dead_) {
      NextBlock next = queue_.pop(read_throttle_.may_start(now), write_throttle_.may_start(now),
                                  writes_in_flight_);
      if (!next.transfer) break;
      if (next.transfer->op == IoOp::kRead) read_throttle_.charge(next.bytes, now);
      if (next.transfer->op == IoOp::kWrite) write_throttle_.charge(next.bytes, now);
      const std::size_t slot = free_.back();
      free_.pop_back();
      ++next.transfer->in_flight;
      if (next.transfer->op != IoOp::kRead) ++writes_in_flight_;
      slots_[slot] = {std::move(next.transfer), next.at, next.bytes, 0};
      unsent_.push_back(slot);
    }
    send();
  }

  void send() {
    if (unsent_.empty()) return;
    if (in_flight() == 0) last_answer_ = now_seconds();
    batch_.clear();
    for (const std::size_t slot : unsent_) batch_.push_back(block_of(slot));
    const std::size_t taken = engine_->submit(batch_);
    unsent_.erase(unsent_.begin(), unsent_.begin() + static_cast<std::ptrdiff_t>(taken));
    counters_.in_flight_peak = std::max<std::uint64_t>(counters_.in_flight_peak, in_flight());
    if (taken > 0 || in_flight() > 0) {
      refusals_ = 0;
    } else if (++refusals_ < kMostRefusals) {
      pause_briefly();
    } else {
      refusals_ = 0;
      const std::size_t slot = unsent_.front();
      unsent_.pop_front();
      give_up(slot, failed_with(describe(slot), EAGAIN));
    }
  }

  IoBlock block_of(std::size_t index) const {
    const Slot& slot = slots_[index];
    const IoRequest& request = slot.transfer->request;
    IoBlock block;
    block.op = slot.transfer->op;
    block.file = files_[static_cast<std::size_t>(request.file)].engine_file;
    block.offset = request.offset + slot.at;
    block.memory = static_cast<std::byte*>(request.memory) + slot.at;
    block.bytes = slot.bytes;
    block.tag = index;
    return block;
  }

  void reap() {
    const double now = now_seconds();
    double timeout = -1;
    if (options_.stall_seconds > 0)
      timeout = std::max(0.0, last_answer_ + options_.stall_seconds - now);
    if (!queue_.empty() && !free_.empty() && throttle_opens() > now) {
      const double opens = throttle_opens() - now;
      timeout = timeout < 0 ? opens : std::min(timeout, opens);
    }
    // With all slots taken a new request can't start before a completion comes anyway.
    const bool door = !free_.empty();
    if (door && !inbox_.open_door(engine_.get())) timeout = 0;
    const std::size_t count = engine_->reap(completions_, timeout);
    if (door) inbox_.close_door();
    if (count > 0) {
      examine(count);
    } else if (options_.stall_seconds > 0 &&
               now_seconds() >= last_answer_ + options_.stall_seconds) {
      declare_dead();
    }
  }

  void examine(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t tag = completions_[i].tag;
      ZINF_CHECK(tag < slots_.size() && slots_[tag].transfer,
                 str("completion of no block, tag ", tag));
    }
    deal_out_time(count);
    for (std::size_t i = 0; i < count; ++i)
      examine_one(completions_[i].tag, completions_[i].result);
  }

  // The time since the last completion (or since there was work) belongs to the blocks that
  // completed now.
  void deal_out_time(std::size_t count) {
    last_answer_ = now_seconds();
    double weights = 0;
    const auto weight = [&](std::size_t i) {
      return static_cast<double>(std::max<Bytes>(slots_[completions_[i].tag].bytes, 4096));
    };
    for (std::size_t i = 0; i < count; ++i) weights += weight(i);
    const double elapsed = last_answer_ - busy_since_;
    for (std::size_t i = 0; i < count; ++i) {
      slots_[completions_[i].tag].transfer->busy_seconds += elapsed * weight(i) / weights;
    }
    counters_.busy_seconds += elapsed;
    busy_since_ = last_answer_;
  }

  void examine_one(std::size_t index, std::int64_t result) {
    Slot& slot = slots_[index];
    const IoOp op = slot.transfer->op;
    if (result < 0) {
      const int error_number = static_cast<int>(-result);
      if (error_number != EAGAIN && error_number != EINTR) {
        return give_up(index, failed_with(describe(index), error_number));
      }
      if (++slot.fruitless > kMostRetries)
        return give_up(index, failed_with(describe(index), error_number));
      return retry(index);
    }
    if (op == IoOp::kSync) {
      ++counters_.syncs;
      return release(index);
    }
    const auto moved = static_cast<Bytes>(result);
    ZINF_CHECK(moved <= slot.bytes, "more bytes moved than asked for");
    if (moved == slot.bytes) {
      count_bytes(op, moved);
      return release(index);
    }
    // Direct I/O accepts only aligned offsets, so a ragged end is moved again. Zero bytes read is
    // the end of file.
    const Bytes kept = moved / file_of(index).alignment * file_of(index).alignment;
    const bool at_end = op == IoOp::kRead && moved == 0;
    slot.fruitless = kept > 0 ? 0 : slot.fruitless + 1;
    if (at_end || slot.fruitless > kMostRetries)
      return give_up(index, failed_short(describe(index), moved));
    count_bytes(op, kept);
    slot.at += kept;
    slot.bytes -= kept;
    retry(index);
  }

  void retry(std::size_t index) {
    ++counters_.retries;
    if (slots_[index].transfer->failure) return release(index);  // its request has failed elsewhere
    if (slots_[index].fruitless > kQuietRetries) pause_briefly();
    unsent_.push_back(index);
  }

  void count_bytes(IoOp op, Bytes bytes) {
    (op == IoOp::kRead ? counters_.bytes_read : counters_.bytes_written) += bytes;
  }

  const LaneFile& file_of(std::size_t index) const {
    return *files_[static_cast<std::size_t>(slots_[index].transfer->request.file)].file;
  }

  FailedBlock describe(std::size_t index) const {
    const Slot& slot = slots_[index];
    const LaneFile& file = file_of(index);
    return {slot.transfer->op, file.path, file.descriptor, slot.transfer->request.offset + slot.at,
            slot.bytes};
  }

  void give_up(std::size_t index, std::shared_ptr<const IoFailure> failure) {
    Transfer& transfer = *slots_[index].transfer;
    if (!transfer.failure) transfer.failure = std::move(failure);
    queue_.drop(slots_[index].transfer);
    release(index);
  }

  void release(std::size_t index) {
    const TransferRef transfer = std::exchange(slots_[index].transfer, nullptr);
    free_.push_back(index);
    --transfer->in_flight;
    if (transfer->op != IoOp::kRead) --writes_in_flight_;
    if (transfer->finished()) finish(*transfer);
  }

  void finish(const Transfer& transfer) noexcept {
    if (transfer.op == IoOp::kRead) ++counters_.read_requests;
    if (transfer.op == IoOp::kWrite) ++counters_.write_requests;
    inbox_.publish(counters_);
    if (transfer.request.on_done)
      transfer.request.on_done({transfer.failure, transfer.busy_seconds});
  }

  // The drive hangs: everything that waits fails, and whatever comes later. The blocks in flight
  // keep their slots, for the kernel may still answer.
  void declare_dead() {
    std::vector<TransferRef> failed;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (!slots_[i].transfer) continue;
      if (!dead_) dead_ = failed_stalled(describe(i), options_.stall_seconds);
      if (std::find(failed.begin(), failed.end(), slots_[i].transfer) == failed.end()) {
        failed.push_back(slots_[i].transfer);
      }
      slots_[i].transfer = nullptr;
    }
    for (TransferRef& transfer : queue_.take_all()) {
      if (std::find(failed.begin(), failed.end(), transfer) == failed.end())
        failed.push_back(std::move(transfer));
    }
    unsent_.clear();
    lost_ = slots_.size() - free_.size();
    for (const TransferRef& transfer : failed) {
      if (!transfer->failure) transfer->failure = dead_;
      finish(*transfer);
    }
  }

  const LaneOptions& options_;
  LaneInbox& inbox_;
  std::unique_ptr<IoEngine> engine_;
  BlockQueue queue_;
  Throttle read_throttle_;
  Throttle write_throttle_;
  std::vector<WorkerFile> files_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> free_;
  std::deque<std::size_t> unsent_;  // slots with a block that the engine has not taken
  std::vector<IoBlock> batch_;
  std::vector<IoCompletion> completions_;
  std::shared_ptr<const IoFailure> dead_;
  std::size_t lost_ = 0;  // slots of a dead lane
  int writes_in_flight_ = 0;
  int refusals_ = 0;
  double busy_since_ = -1;
  double last_answer_ = 0;
  LaneCounters counters_;
};

}  // namespace

void run_lane(const LaneOptions& options, LaneInbox& inbox, std::promise<std::string>& started) {
  pthread_setname_np(pthread_self(), "zinf-nvme");
  std::unique_ptr<IoEngine> engine;
  try {
    engine = make_engine(options.engine);
    if (options.wrap_engine) engine = options.wrap_engine(std::move(engine));
  } catch (...) {
    started.set_exception(std::current_exception());
    return;
  }
  started.set_value(std::string(engine->name()));
  LaneWorker(options, inbox, std::move(engine)).run();
}

}  // namespace zinf::nvme
