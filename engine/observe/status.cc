#include "engine/observe/status.h"

#include <algorithm>
#include <ctime>
#include <exception>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/str.h"
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

StoredStatus parse_status(std::string_view text) {
  StoredStatus found;
  try {
    const Json json = Json::parse(text);
    const std::string state = json.at("state");
    while (run_state_name(found.status.state) != state) {
      if (found.status.state == RunState::kFailed)
        throw Error(ErrorKind::kUsage, str("not a status.json: unknown state \"", state, "\""));
      found.status.state = static_cast<RunState>(static_cast<int>(found.status.state) + 1);
    }
    found.status.pid = json.at("pid");
    get_count(json, "step", found.status.step);
    get_count(json, "steps", found.status.steps);
    if (const Json& commit = json.at("last_commit"); !commit.is_null())
      found.status.last_commit = commit.get<std::uint64_t>();
    if (const Json& eta = json.at("eta_seconds"); !eta.is_null()) found.status.eta_seconds = eta;
    if (const Json& code = json.at("exit_code"); !code.is_null())
      found.status.exit_code = code.get<int>();
    get_text(json, "message", found.status.message);
    get_text(json, "updated", found.updated);
  } catch (const Json::exception& error) {
    throw Error(ErrorKind::kUsage, str("not a status.json: ", error.what()));
  }
  return found;
}

bool write_status(const Status& status, const std::string& path) {
  try {
    write_file_atomically(path, status_json(status, utc_now()), Durability::kBuffered);
    return true;
  } catch (const std::exception& error) {
    Status shorter = status;  // so that it fits the block that the file has, of 1 KiB at least
    constexpr std::size_t kMostMessage = 500;
    shorter.message.resize(std::min(status.message.size(), kMostMessage));
    if (overwrite_file(path, status_json(shorter, utc_now()))) return true;
    log::warning_once(error.what());
    return false;
  }
}

}  // namespace zinf::observe
