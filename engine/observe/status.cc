#include "engine/observe/status.h"

#include <ctime>
#include <exception>

#include "engine/base/log.h"
#include "engine/observe/atomic_file.h"
#include "engine/observe/json_fields.h"

namespace zinf::observe {

namespace {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

std::string_view run_state_name(RunState state) {
  switch (state) {
    case RunState::kStarting:
      return "starting";
    case RunState::kTraining:
      return "training";
    case RunState::kEvaluating:
      return "evaluating";
    case RunState::kSaving:
      return "saving";
    case RunState::kFinished:
      return "finished";
    case RunState::kInterrupted:
      return "interrupted";
    case RunState::kFailed:
      return "failed";
  }
  return "unknown";
}

std::string status_json(const Status& status, std::string_view updated) {
  Json json;
  json["pid"] = status.pid;
  json["state"] = std::string(run_state_name(status.state));
  json["step"] = status.step;
  json["steps"] = status.steps;
  json["last_commit"] = status.last_commit ? Json(*status.last_commit) : Json(nullptr);
  json["eta_seconds"] = status.eta_seconds < 0 ? Json(nullptr) : json_number(status.eta_seconds);
  json["exit_code"] = status.exit_code ? Json(*status.exit_code) : Json(nullptr);
  json["message"] = status.message;
  json["updated"] = std::string(updated);
  return dump(json, 1) + "\n";
}

bool write_status(const Status& status, const std::string& path) {
  try {
    write_file_atomically(path, status_json(status, utc_now()), Durability::kBuffered);
    return true;
  } catch (const std::exception& error) {
    log::warning_once(error.what());
    return false;
  }
}

}  // namespace zinf::observe
