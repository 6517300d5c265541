#include "engine/base/stall_watch.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <utility>

#include "engine/base/str.h"

namespace zinf {

StallWatch::StallWatch(double patience, std::function<std::optional<Activity>()> longest,
                       std::function<void(const std::string&)> on_stall)
    : longest_(std::move(longest)), on_stall_(std::move(on_stall)) {
  if (patience > 0) thread_ = std::thread([this, patience] { watch(patience); });
}

StallWatch::~StallWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StallWatch::watch(double patience) {
  const auto pause = std::chrono::duration<double>(std::clamp(patience / 4, 0.01, 5.0));
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, pause, [this] { return stop_; })) {
    const std::optional<Activity> activity = longest_();
    if (!activity || activity->seconds < patience * activity->patience_factor) continue;
    lock.unlock();
    on_stall_(str("the ", activity->lane, " lane hangs: ", activity->what,
                  " has been under way for ", static_cast<long long>(activity->seconds), " s"));
    return;
  }
}

bool done_within(double seconds, std::function<void()> action) {
  const auto done = std::make_shared<std::promise<bool>>();
  std::future<bool> result = done->get_future();
  std::thread([action = std::move(action), done] {
    bool whole = true;
    try {
      action();
    } catch (...) {  // who calls this ends the process all the same
      whole = false;
    }
    done->set_value(whole);
  }).detach();
  return result.wait_for(std::chrono::duration<double>(seconds)) == std::future_status::ready &&
         result.get();
}

}  // namespace zinf
