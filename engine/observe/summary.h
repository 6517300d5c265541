// summary.json and the table that a run ends with: what was measured, beside what the plan
// predicted.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "engine/observe/step_record.h"

namespace zinf::observe {

struct TierPeak {
  Bytes predicted = 0;
  Bytes measured = 0;
  Bytes budget = 0;
  std::map<std::string, Bytes>
      by_class;  // predicted or measured bytes per buffer class at the peak
};

struct LaneSummary {
  double busy_share = 0;  // stand-alone time of the ops / measured time
  double predicted_busy_share = kUnknown;
  double bytes_per_parameter_step = 0;
  double least_bytes_per_parameter_step = 0;  // closed form of the formats in use
  double profile_ratio = kUnknown;  // measured rate / rate of the profile that the plan used
};

// A field that is kUnknown, or not finite, is null in the file and "-" in the table.
struct Summary {
  std::uint64_t steps = 0;
  double final_loss = kUnknown;
  std::uint64_t parameters = 0;
  std::string weights_hash;
  std::string state_hash;
  double tokens_per_second = 0;
  double step_seconds_measured = 0;  // median
  double step_seconds_predicted = kUnknown;
  double step_seconds_ideal = kUnknown;
  double efficiency = kUnknown;
  std::string bottleneck;            // the busiest lane of the steady steps; empty: none was seen
  std::string predicted_bottleneck;  // the plan's
  double exposed_optimizer_seconds = 0;  // per step, median
  double predicted_exposed_optimizer_seconds = kUnknown;
  TierPeak device, host, nvme;
  TierPeak pinned;   // of host: locked pages
  TierPeak process;  // peak resident memory plus huge-page pools, summed proportionally over ranks
  PerLane<LaneSummary> lanes;
  std::map<std::string, Bytes> written_bytes;  // by drive
  // Beyond the contract's fields.
  std::map<std::string, Bytes> endurance;  // by drive, where the config tells it; 0 is not written
  double total_seconds = 0;                // wall time of the steps
  std::uint64_t tokens = 0;                // input tokens of the whole run
  std::string unit = "tok";                // of tokens, for people: "samples" in regression
  std::uint64_t speculated_steps = 0;      // with updates during backward
  std::uint64_t redo_steps = 0;            // those of them that were updated again
  std::string stopped_by;                  // empty: ran to its end; else "SIGTERM", ...
  std::optional<double> eval_loss;
};

std::string summary_json(const Summary& summary);
// The inverse; missing keys keep their defaults. Throws Error(kUsage).
Summary parse_summary(std::string_view json);

// Synced, atomic, mode 0600. Throws Error(kFailed).
void write_summary(const Summary& summary, const std::string& path);

// For stdout; lines end in '\n', no colour.
std::string summary_table(const Summary& summary);

}  // namespace zinf::observe
