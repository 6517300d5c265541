#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/observe/format.h"
#include "engine/observe/summary.h"

namespace zinf::observe {

namespace {

std::string seconds_or_dash(double seconds) {
  return std::isfinite(seconds) ? format_step_time(seconds) : "-";
}
std::string text_or_dash(const std::string& text) { return text.empty() ? "-" : text; }
std::string bytes_or_dash(Bytes bytes) { return bytes == 0 ? "-" : format_bytes(bytes); }
std::string number_or_dash(double value) {
  return std::isfinite(value) && value != 0 ? fmt::format("{:.2f}", value) : "-";
}

// 134515008 -> "134,515,008".
std::string with_commas(std::uint64_t value) {
  std::string digits = std::to_string(value);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), ",");
  }
  return digits;
}

std::string head(const Summary& s) {
  std::string text = s.stopped_by.empty()
                         ? fmt::format("Finished after {} steps", s.steps)
                         : fmt::format("Stopped by {} after {} steps", s.stopped_by, s.steps);
  text +=
      fmt::format(": {} parameters, final loss {:.4f}", with_commas(s.parameters), s.final_loss);
  if (s.eval_loss) text += fmt::format(", evaluation loss {:.4f}", *s.eval_loss);
  text += fmt::format("\n{} {} in {}, {} {}/s", with_commas(s.tokens),
                      s.unit == "tok" ? "tokens" : s.unit, format_duration(s.total_seconds),
                      format_count(s.tokens_per_second), s.unit);
  if (std::isfinite(s.efficiency)) text += ", efficiency " + format_percent(s.efficiency);
  if (s.speculated_steps > 0)
    text += fmt::format(", {} steps with early updates", s.speculated_steps);
  if (s.redo_steps > 0) text += fmt::format(", {} steps redone", s.redo_steps);
  text += "\n";
  if (!s.weights_hash.empty()) text += "weights " + s.weights_hash + "\n";
  if (!s.state_hash.empty()) text += "state   " + s.state_hash + "\n";
  return text;
}

std::string time_table(const Summary& s) {
  std::string text =
      fmt::format("\n{:<18}{:>12}{:>12}{:>12}\n", "time", "predicted", "measured", "ideal");
  text +=
      fmt::format("{:<18}{:>12}{:>12}{:>12}\n", "step", seconds_or_dash(s.step_seconds_predicted),
                  seconds_or_dash(s.step_seconds_measured), seconds_or_dash(s.step_seconds_ideal));
  text += fmt::format("{:<18}{:>12}{:>12}\n", "exposed optimizer",
                      seconds_or_dash(s.predicted_exposed_optimizer_seconds),
                      seconds_or_dash(s.exposed_optimizer_seconds));
  if (!s.bottleneck.empty() || !s.predicted_bottleneck.empty())
    text += fmt::format("{:<18}{:>12}{:>12}\n", "bottleneck", text_or_dash(s.predicted_bottleneck),
                        text_or_dash(s.bottleneck));
  return text;
}

std::string tier_row(const char* name, const TierPeak& tier) {
  const std::string share =
      tier.budget > 0
          ? format_percent(static_cast<double>(tier.measured) / static_cast<double>(tier.budget))
          : "-";
  std::string text =
      fmt::format("{:<18}{:>12}{:>12}{:>12}{:>12}\n", name, bytes_or_dash(tier.predicted),
                  bytes_or_dash(tier.measured), bytes_or_dash(tier.budget), share);
  for (const auto& [kind, bytes] : tier.by_class) {
    text += fmt::format("  {:<16}{:>12}\n", kind, format_bytes(bytes));
  }
  return text;
}

std::string tier_table(const Summary& s) {
  return fmt::format("\n{:<18}{:>12}{:>12}{:>12}{:>12}\n", "peak memory", "predicted", "measured",
                     "budget", "used") +
         tier_row("device", s.device) + tier_row("host", s.host) + tier_row("pinned", s.pinned) +
         tier_row("nvme", s.nvme) + tier_row("process", s.process);
}

std::string lane_table(const Summary& s) {
  std::string text = fmt::format("\n{:<18}{:>12}{:>12}{:>12}{:>12}{:>12}\n", "lane busy",
                                 "predicted", "measured", "bytes/param", "least", "of profile");
  for (std::size_t i = 0; i < kLanes; ++i) {
    const LaneSummary& lane = s.lanes.values[i];
    if (lane.busy_share == 0 && lane.bytes_per_parameter_step == 0) continue;
    text += fmt::format("{:<18}{:>12}{:>12}{:>12}{:>12}{:>12}\n", kLaneNames[i],
                        format_percent(lane.predicted_busy_share), format_percent(lane.busy_share),
                        number_or_dash(lane.bytes_per_parameter_step),
                        number_or_dash(lane.least_bytes_per_parameter_step),
                        format_percent(lane.profile_ratio));
  }
  return text;
}

std::string wear_line(const Summary& s, const std::string& drive, Bytes written) {
  const double steps = static_cast<double>(std::max<std::uint64_t>(s.steps, 1));
  const double per_step = static_cast<double>(written) / steps;
  std::string text = fmt::format("{}: {} written, {} a step", drive, format_bytes(written),
                                 format_bytes(static_cast<Bytes>(std::llround(per_step))));
  const auto found = s.endurance.find(drive);
  if (found == s.endurance.end() || found->second == 0) return text + "\n";
  const double endurance = static_cast<double>(found->second);
  text += fmt::format("; {:.3g} % of its endurance of {:.0f} TBW",
                      static_cast<double>(written) / endurance * 100, endurance / 1e12);
  if (per_step > 0)
    text += fmt::format(", which is {} such steps", format_count(endurance / per_step));
  return text + "\n";
}

}  // namespace

std::string summary_table(const Summary& summary) {
  std::string text =
      head(summary) + time_table(summary) + tier_table(summary) + lane_table(summary);
  if (!summary.written_bytes.empty()) text += "\nwritten to drives\n";
  for (const auto& [drive, bytes] : summary.written_bytes) text += wear_line(summary, drive, bytes);
  return text;
}

}  // namespace zinf::observe
