// The line that a person watches: one per step, with the time that is left.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

#include "engine/observe/step_record.h"

namespace zinf::observe {

// "step 12/500 | loss 3.2101 | lr 2.0e-5 | norm 0.91 | 812 ms | 1.2k tok/s | nvme r 0.98 w 1.41
// GB/s | ETA 6m40s | eff 93 % (nvme_read)". What is unknown is left out; a non-finite loss or norm
// that was measured cannot be told from an unknown one, so the loss is always there. eta_seconds <
// 0: no ETA. unit: "tok", or "samples" for tables.
std::string progress_line(const StepRecord& record, std::uint64_t steps, double eta_seconds,
                          std::string_view unit = "tok");

struct ProgressOptions {
  std::uint64_t steps = 0;  // of the whole run; 0: unknown
  std::uint64_t steps_per_print = 1;
  std::string unit = "tok";
  bool quiet = false;  // other ranks than 0, and -q: nothing is written
  bool tty = false;    // colour and a line that is rewritten between prints; else plain lines with
                       // time stamps
  bool colour = false;
  std::size_t columns = 0;                      // of the terminal; 0: unknown
  std::function<void(std::string_view)> write;  // default: file descriptor 2
  std::function<std::string()> time_stamp;      // default: local "2026-11-30 08:50:00"
};

// tty, colour and columns for a descriptor. No colour where NO_COLOR is set and not empty or TERM
// is "dumb".
ProgressOptions progress_options_for(int fd);

// On a terminal every steps_per_print-th step leaves a line, the steps between rewrite one line
// with a bar. One thread; call clear() before anything else writes to the terminal.
class Progress {
 public:
  explicit Progress(ProgressOptions options);
  void step(const StepRecord& record);
  void clear();   // wipes the line that is being rewritten
  void finish();  // leaves the last step's line if it was not printed
  // Remaining steps times the mean of the last 32 step times; -1: unknown.
  double eta_seconds() const;

 private:
  void print_line(const StepRecord& record);
  void print_transient(const StepRecord& record);

  ProgressOptions options_;
  std::deque<double> recent_;
  StepRecord last_;
  bool last_printed_ = true;
  bool transient_ = false;
};

}  // namespace zinf::observe
