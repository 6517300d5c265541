// Ends the program when what it watches takes too long: a test that hangs fails, and says where.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

namespace zinf::testing {

class Watchdog {
 public:
  explicit Watchdog(std::string what, std::chrono::seconds patience = std::chrono::seconds(600))
      : thread_([this, what = std::move(what), patience] {
          std::unique_lock lock(mutex_);
          if (done_.wait_for(lock, patience, [this] { return stopped_; })) return;
          std::fprintf(stderr, "watchdog: hangs: %s\n", what.c_str());
          std::abort();
        }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    done_.notify_one();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace zinf::testing
