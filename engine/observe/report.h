// A run on one page: HTML with inline SVG, no script, nothing fetched from anywhere; opens from a
// mail attachment.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "engine/observe/step_record.h"
#include "engine/observe/summary.h"

namespace zinf::observe {

// Charts: loss, step time, learning rate and gradient norm, busy shares per lane; tables: predicted
// against measured. Long runs are thinned to at most about 1000 points per chart (least and
// greatest of each bin are kept). Deterministic. All text is escaped.
std::string report_html(std::span<const StepRecord> records, const std::optional<Summary>& summary,
                        const std::string& title);

// Reads run_dir/metrics.jsonl and, if there, summary.json; writes run_dir/report.html (0600) and
// returns its path. Throws Error(kUsage) when there are no metrics.
std::string write_report(const std::string& run_dir);

}  // namespace zinf::observe
