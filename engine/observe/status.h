// status.json: what a supervisor (systemd, Slurm, a shell loop) wants to know about a run that may
// be alive.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace zinf::observe {

enum class RunState {
  kStarting,
  kTraining,
  kEvaluating,
  kSaving,
  kFinished,
  kInterrupted,
  kFailed
};

std::string_view run_state_name(RunState state);  // "starting", "training", ...

struct Status {
  int pid = 0;
  RunState state = RunState::kStarting;
  std::uint64_t step = 0;  // last finished step
  std::uint64_t steps = 0;
  std::optional<std::uint64_t> last_commit;  // step of the newest durable state
  double eta_seconds = -1;                   // negative: unknown, written as null
  std::optional<int> exit_code;              // once it has ended
  std::string message;                       // why it failed or was interrupted
};

// Keys: pid, state, step, steps, last_commit, eta_seconds, exit_code, message, updated (UTC, ISO
// 8601).
std::string status_json(const Status& status, std::string_view updated);

// What a reader finds.
struct StoredStatus {
  Status status;
  std::string updated;
};
// Error(kUsage): it is no status.
StoredStatus parse_status(std::string_view json);

// Replaces the file atomically, mode 0600, without a sync (it is written every step): readers see
// old or new. Where the disk is full it is overwritten in place, a long message cut: the end of a
// run is told even there. Never throws: a status that cannot be written must not end a run. false:
// not written.
bool write_status(const Status& status, const std::string& path);

}  // namespace zinf::observe
