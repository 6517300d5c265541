// metrics.jsonl: one JSON object per step, in step order, each step at most once, also over
// interruptions.
//
// Numbers that are not finite (an unknown value, a loss that blew up) are written as null: the file
// stays strict JSON and a column stays numeric for whoever loads it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/observe/step_record.h"

namespace zinf::observe {

// One line without the newline, keys in the order of StepRecord, "step" first. Deterministic.
std::string metrics_line(const StepRecord& record);

// The inverse; unknown keys are ignored, missing ones keep their defaults. Throws Error(kUsage).
StepRecord parse_metrics_line(std::string_view line);

// All whole lines of a file; a torn last line is left out. Throws Error(kUsage) on any other
// damage.
std::vector<StepRecord> read_metrics(const std::string& path);

// Makes the lines in the file durable: before a commit is published, so that no committed step
// lacks its line. Any thread, while a writer appends or without one. No file is no error: there is
// no line before the first step. Throws Error(kFailed).
void sync_metrics(const std::string& path);

// Appends. One thread. Throws Error(kFailed) with the path when the disk refuses.
class MetricsWriter {
 public:
  // Creates the file (mode 0600) or reopens it and keeps only whole lines with step <= last_step:
  // what a killed run wrote after the state that is resumed goes, so steps are not written twice.
  // Fresh run: last_step = 0.
  MetricsWriter(const std::string& path, std::uint64_t last_step);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  // One write call for the whole line: it outlives a kill at any later moment.
  void append(const StepRecord& record);
  // Lines dropped when the file was reopened, a torn one included.
  std::uint64_t dropped_lines() const { return dropped_lines_; }

 private:
  std::string path_;
  int fd_ = -1;
  std::uint64_t dropped_lines_ = 0;
};

}  // namespace zinf::observe
