// Calls that may never return, such as those to a file system whose server is gone, while they are
// under way: for a StallWatch, which names the one that hangs.
#pragma once

#include <list>
#include <optional>
#include <string>

#include "engine/base/stall_watch.h"

namespace zinf {

// A call is under way as long as this lives. Any thread.
class UnderWay {
 public:
  // As in "the data lane hangs: reading /data/tokens.bin". The path outlives this.
  UnderWay(const char* lane, const char* doing, const std::string& path);
  ~UnderWay();
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;

  struct Call {
    const char* lane;
    const char* doing;
    const std::string* path;
    double since;
  };

 private:
  std::list<Call>::iterator at_;
};

// The one that has been under way for longest. Any thread.
std::optional<Activity> longest_call();

}  // namespace zinf
