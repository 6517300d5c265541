#include "nvme/thread_engine.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace zinf::nvme {

namespace {

std::int64_t run_block(const IoBlock& block) {
  ssize_t result = 0;
  if (block.op == IoOp::kRead) {
    result = ::pread(block.file, block.memory, block.bytes, static_cast<off_t>(block.offset));
  } else if (block.op == IoOp::kWrite) {
    result = ::pwrite(block.file, block.memory, block.bytes, static_cast<off_t>(block.offset));
  } else {
    result = ::fdatasync(block.file);
  }
  return result < 0 ? -errno : result;
}

class ThreadEngine final : public IoEngine {
 public:
  ThreadEngine(int depth, int threads) : depth_(depth) {
    // Workers take no signals: those belong to the main thread.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 0; i < std::min(depth, threads > 0 ? threads : kMostThreads); ++i)
      workers_.emplace_back([this] { work(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~ThreadEngine() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_cv_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  std::string_view name() const override { return "threads"; }
  EngineLimits limits() const override { return {depth_, kGiB}; }
  int add_file(int descriptor) override { return descriptor; }

  std::size_t submit(std::span<const IoBlock> blocks) override {
    std::size_t taken = 0;
    {
      const std::lock_guard lock(mutex_);
      for (const IoBlock& block : blocks) {
        if (in_flight_ == depth_) break;
        waiting_.push_back(block);
        ++in_flight_;
        ++taken;
      }
    }
    for (std::size_t i = 0; i < taken; ++i) work_cv_.notify_one();
    return taken;
  }

  std::size_t reap(std::span<IoCompletion> out, double timeout_seconds) override {
    std::unique_lock lock(mutex_);
    const auto ready = [this] { return woken_ || !done_.empty(); };
    if (timeout_seconds < 0) {
      done_cv_.wait(lock, ready);
    } else if (timeout_seconds > 0) {
      done_cv_.wait_for(lock, std::chrono::duration<double>(timeout_seconds), ready);
    }
    woken_ = false;
    std::size_t count = 0;
    while (count < out.size() && !done_.empty()) {
      out[count++] = done_.front();
      done_.pop_front();
      --in_flight_;
    }
    return count;
  }

  int in_flight() const override {
    const std::lock_guard lock(mutex_);
    return in_flight_;
  }

  void abandon() override {
    const std::lock_guard lock(mutex_);
    waiting_.clear();
  }

  void wake() override {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    done_cv_.notify_one();
  }

 private:
  void work() {
    pthread_setname_np(pthread_self(), "zinf-io");
    std::unique_lock lock(mutex_);
    for (;;) {
      work_cv_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const IoBlock block = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const IoCompletion completion{block.tag, run_block(block)};
      lock.lock();
      done_.push_back(completion);
      done_cv_.notify_one();
    }
  }

  const int depth_;
  mutable std::mutex mutex_;
  std::condition_variable work_cv_;
  std::condition_variable done_cv_;
  std::deque<IoBlock> waiting_;
  std::deque<IoCompletion> done_;
  int in_flight_ = 0;
  bool woken_ = false;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace

std::unique_ptr<IoEngine> make_thread_engine(int depth, int threads) {
  return std::make_unique<ThreadEngine>(depth, threads);
}

}  // namespace zinf::nvme
