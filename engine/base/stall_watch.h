// Ends a run that hangs: when one activity has been under way for longer than the patience, it is
// named with its lane.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace zinf {

// What a lane is doing.
struct Activity {
  std::string lane;
  std::string what;
  double seconds = 0;  // so far
  // More than 1: something that knows more of it watches it too, and is given the time to speak
  // first.
  double patience_factor = 1;
};

class StallWatch {
 public:
  // patience: in seconds; 0: no watch. longest: what has been under way for longest, or nothing;
  // called in the watch's thread. on_stall: called once, in the same thread, with what hangs, as
  // text; it usually ends the process, since what hangs can't be unwound.
  StallWatch(double patience, std::function<std::optional<Activity>()> longest,
             std::function<void(const std::string&)> on_stall);
  ~StallWatch();
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

 private:
  void watch(double patience);

  std::function<std::optional<Activity>()> longest_;
  std::function<void(const std::string&)> on_stall_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

// Runs it in a thread of its own, for so many seconds at most: last words, for which what hangs may
// be needed. false: it is still running, or has thrown.
bool done_within(double seconds, std::function<void()> action);

}  // namespace zinf
