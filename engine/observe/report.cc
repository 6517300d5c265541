#include "engine/observe/report.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/observe/atomic_file.h"
#include "engine/observe/format.h"
#include "engine/observe/metrics.h"
#include "engine/observe/report_chart.h"

namespace zinf::observe {

namespace {

constexpr const char* kStyle = R"(<style>
body{font:15px/1.45 system-ui,sans-serif;color:#222;background:#fff;max-width:860px;margin:2em auto;padding:0 1em}
h1{font-size:1.4em}h2{font-size:1.1em;margin-top:2em}
figure{margin:1.5em 0}figcaption{font-weight:600}
svg{width:100%;height:auto}
.legend{margin:.2em 0}.legend span{margin-right:1em;white-space:nowrap}
.legend i{display:inline-block;width:12px;height:12px;margin-right:4px;border-radius:2px}
table{border-collapse:collapse;width:100%;margin:1em 0}td{white-space:nowrap}th,td{padding:3px 8px;text-align:right;border-bottom:1px solid #e5e5e5}
th:first-child,td:first-child{text-align:left}code{font-size:.85em;word-break:break-all}
</style>
)";

using Row = std::vector<std::string>;

std::string table(const Row& head, const std::vector<Row>& rows) {
  std::string html = "<table><tr>";
  for (const std::string& cell : head) html += "<th>" + escape_html(cell) + "</th>";
  html += "</tr>\n";
  for (const Row& row : rows) {
    html += "<tr>";
    for (const std::string& cell : row) html += "<td>" + escape_html(cell) + "</td>";
    html += "</tr>\n";
  }
  return html + "</table>\n";
}

std::string seconds_or_dash(double seconds) {
  return std::isfinite(seconds) ? format_step_time(seconds) : "-";
}

Row tier_row(const char* name, const TierPeak& tier) {
  const auto share = [&](Bytes part, Bytes whole) {
    return whole > 0 ? format_percent(static_cast<double>(part) / static_cast<double>(whole)) : "-";
  };
  return {name,
          tier.predicted > 0 ? format_bytes(tier.predicted) : "-",
          format_bytes(tier.measured),
          share(tier.measured, tier.predicted),
          tier.budget > 0 ? format_bytes(tier.budget) : "-",
          share(tier.measured, tier.budget)};
}

Row lane_row(std::size_t i, const LaneSummary& lane) {
  const auto number = [](double value) {
    return value > 0 ? fmt::format("{:.2f}", value) : std::string("-");
  };
  return {std::string(kLaneNames[i]),
          format_percent(lane.predicted_busy_share),
          format_percent(lane.busy_share),
          number(lane.bytes_per_parameter_step),
          number(lane.least_bytes_per_parameter_step),
          format_percent(lane.profile_ratio)};
}

std::string summary_section(const Summary& s) {
  std::string html = "<h2>Predicted against measured</h2>\n";
  html += table(
      {"step time", "predicted", "measured", "ideal", "efficiency"},
      {{"step", seconds_or_dash(s.step_seconds_predicted), seconds_or_dash(s.step_seconds_measured),
        seconds_or_dash(s.step_seconds_ideal), format_percent(s.efficiency)}});
  html += table({"peak memory", "predicted", "measured", "of predicted", "budget", "of budget"},
                {tier_row("device", s.device), tier_row("host", s.host), tier_row("nvme", s.nvme),
                 tier_row("process", s.process)});
  std::vector<Row> lanes;
  for (std::size_t i = 0; i < kLanes; ++i) lanes.push_back(lane_row(i, s.lanes.values[i]));
  html += table({"lane", "busy, predicted", "busy, measured", "bytes per parameter and step",
                 "least possible", "rate / profile"},
                lanes);
  std::vector<Row> drives;
  for (const auto& [drive, bytes] : s.written_bytes) {
    const auto found = s.endurance.find(drive);
    const bool known = found != s.endurance.end() && found->second > 0;
    drives.push_back({drive, format_bytes(bytes),
                      known ? fmt::format("{:.3g} %", 100.0 * static_cast<double>(bytes) /
                                                          static_cast<double>(found->second))
                            : "-"});
  }
  if (!drives.empty())
    html += "<h2>Wear</h2>\n" + table({"drive", "written", "of its endurance"}, drives);
  if (!s.state_hash.empty()) {
    html += "<p>Weights <code>" + escape_html(s.weights_hash) + "</code><br>State <code>" +
            escape_html(s.state_hash) + "</code></p>\n";
  }
  return html;
}

template <typename Value>
Series series_of(std::span<const StepRecord> records, const std::string& name, const Value& value) {
  Series series{name, {}};
  for (const StepRecord& record : records) {
    series.points.emplace_back(static_cast<double>(record.step), value(record));
  }
  return series;
}

bool any_finite(const Series& series) {
  for (const auto& [x, y] : series.points) {
    if (std::isfinite(y) && y != 0) return true;
  }
  return false;
}

std::string charts(std::span<const StepRecord> records) {
  std::vector<Series> losses = {
      series_of(records, "training", [](const StepRecord& r) { return r.loss; })};
  constexpr std::size_t kNoisy = 30;
  if (records.size() > kNoisy) {
    losses[0].faint = true;
    const double memory = static_cast<double>(records.size()) / 20;
    losses.push_back({"training, smoothed", smoothed(losses[0].points, memory)});
  }
  Series evaluation{"evaluation", {}};
  for (const StepRecord& record : records) {
    if (record.eval_loss)
      evaluation.points.emplace_back(static_cast<double>(record.step), *record.eval_loss);
  }
  if (!evaluation.points.empty()) losses.push_back(evaluation);
  std::string html = line_chart({"Loss", "loss"}, losses);
  html += line_chart({"Step time", "seconds", true},
                     {series_of(records, "step", [](const StepRecord& r) { return r.seconds; })});
  std::vector<Series> busy, stalls;
  for (std::size_t i = 0; i < kLanes; ++i) {
    const std::string name(kLaneNames[i]);
    Series share =
        series_of(records, name, [i](const StepRecord& r) { return r.lane_busy.values[i] * 100; });
    Series stall =
        series_of(records, name, [i](const StepRecord& r) { return r.stall_seconds.values[i]; });
    if (any_finite(share)) busy.push_back(std::move(share));
    if (any_finite(stall)) stalls.push_back(std::move(stall));
  }
  if (!busy.empty())
    html += line_chart({"Busy share of each lane", "% of the step", true, 100}, busy);
  if (!stalls.empty())
    html += line_chart({"Stalls, by the lane waited for", "seconds", true}, stalls);
  const Series norm = series_of(records, "norm", [](const StepRecord& r) { return r.grad_norm; });
  if (any_finite(norm)) html += line_chart({"Gradient norm before clipping", "norm", true}, {norm});
  const Series rate = series_of(records, "lr", [](const StepRecord& r) { return r.lr; });
  if (any_finite(rate)) html += line_chart({"Learning rate", "lr", true}, {rate});
  return html;
}

std::string lead(std::span<const StepRecord> records) {
  if (records.empty()) return "<p>No steps yet.</p>\n";
  double seconds = 0;
  std::uint64_t tokens = 0, redo = 0;
  for (const StepRecord& record : records) {
    seconds += record.seconds;
    tokens += record.tokens;
    redo += record.redo;
  }
  std::string html = fmt::format(
      "<p>{} steps in {}, {} tokens ({} a second), last loss {:.4f}", records.size(),
      format_duration(seconds), format_count(static_cast<double>(tokens)),
      format_count(seconds > 0 ? static_cast<double>(tokens) / seconds : 0), records.back().loss);
  if (redo > 0) html += fmt::format(", {} steps redone", redo);
  return html + ".</p>\n";
}

}  // namespace

std::string report_html(std::span<const StepRecord> records, const std::optional<Summary>& summary,
                        const std::string& title) {
  std::string html = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<title>" +
                     escape_html(title) + "</title>\n" + kStyle + "</head><body>\n<h1>" +
                     escape_html(title) + "</h1>\n" + lead(records);
  if (!records.empty()) html += charts(records);
  if (summary) html += summary_section(*summary);
  return html + "</body></html>\n";
}

std::string write_report(const std::string& run_dir) {
  namespace fs = std::filesystem;
  const fs::path folder(run_dir);
  if (!fs::exists(folder / "metrics.jsonl")) {
    throw Error(ErrorKind::kUsage,
                str("no metrics.jsonl in ", run_dir, ": not the folder of a run"),
                "name a run folder (output_dir of the config, or --run-dir)");
  }
  const std::vector<StepRecord> records = read_metrics((folder / "metrics.jsonl").string());
  std::optional<Summary> summary;
  const fs::path summary_path = folder / "summary.json";
  if (fs::exists(summary_path)) summary = parse_summary(read_file(summary_path.string()));
  const fs::path name = fs::weakly_canonical(folder).filename();
  const std::string path = (folder / "report.html").string();
  write_file_atomically(path, report_html(records, summary, name.string()), Durability::kBuffered);
  return path;
}

}  // namespace zinf::observe
