#include "engine/step/activity.h"

#include "engine/base/str.h"

namespace zinf::step {

std::optional<Activity> longest_activity(const Executor& executor, const model::ModelSpec& model) {
  const auto active = executor.longest_active();
  if (!active) return std::nullopt;
  std::string what = plan::op_kind_name(active->kind);
  if (active->stage >= 0) what = str(what, " ", model.stages[active->stage].name);
  if (active->piece >= 0) what = str(what, " ", model.pieces[active->piece].name);
  const bool watched = active->lane == plan::Lane::kRead || active->lane == plan::Lane::kWrite ||
                       active->lane == plan::Lane::kCommit;
  return Activity{plan::lane_name(active->lane), what, active->seconds, watched ? 2.0 : 1.0};
}

}  // namespace zinf::step
