#include "engine/base/under_way.h"

#include <mutex>

#include "engine/base/clock.h"
#include "engine/base/str.h"

namespace zinf {

namespace {

struct Calls {
  std::mutex mutex;
  std::list<UnderWay::Call> list;  // the oldest first
};

Calls& calls() {
  static Calls all;
  return all;
}

}  // namespace

UnderWay::UnderWay(const char* lane, const char* doing, const std::string& path) {
  Calls& all = calls();
  const std::lock_guard lock(all.mutex);
  at_ = all.list.insert(all.list.end(), {lane, doing, &path, now_seconds()});
}

UnderWay::~UnderWay() {
  Calls& all = calls();
  const std::lock_guard lock(all.mutex);
  all.list.erase(at_);
}

std::optional<Activity> longest_call() {
  Calls& all = calls();
  const std::lock_guard lock(all.mutex);
  if (all.list.empty()) return std::nullopt;
  const UnderWay::Call& first = all.list.front();
  return Activity{first.lane, str(first.doing, " ", *first.path), now_seconds() - first.since};
}

}  // namespace zinf
