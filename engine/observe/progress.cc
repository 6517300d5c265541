#include "engine/observe/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <numeric>

#include "engine/observe/format.h"
#include "engine/observe/posix_write.h"

namespace zinf::observe {

namespace {

constexpr std::size_t kEtaWindow = 32;
constexpr const char* kClearLine = "\r\x1b[K";

std::string local_time_stamp() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

std::string step_label(std::uint64_t step, std::uint64_t steps) {
  return steps > 0 ? fmt::format("step {}/{}", step, steps) : fmt::format("step {}", step);
}

std::string efficiency_label(const StepRecord& record) {
  std::string text = "eff " + format_percent(record.efficiency);
  if (!record.bottleneck.empty()) text += " (" + record.bottleneck + ")";
  return text;
}

// "step 12/500" bold, a loss that is not finite red, the efficiency dim: enough to find one's way.
std::string coloured(const std::string& line, const StepRecord& record) {
  const auto first = line.find(" | ");
  std::string head = "\x1b[1m" + line.substr(0, first) + "\x1b[0m";
  std::string rest = line.substr(first);
  if (!std::isfinite(record.loss)) {
    const auto begin = rest.find("loss ");
    const auto end = rest.find(" | ", begin);
    const auto length = end == std::string::npos ? std::string::npos : end - begin;
    rest = rest.substr(0, begin) + "\x1b[31m" + rest.substr(begin, length) + "\x1b[0m" +
           (end == std::string::npos ? "" : rest.substr(end));
  }
  const auto efficiency = rest.rfind("eff ");
  if (efficiency != std::string::npos) {
    rest = rest.substr(0, efficiency) + "\x1b[2m" + rest.substr(efficiency) + "\x1b[0m";
  }
  return head + rest;
}

std::string bar(std::uint64_t step, std::uint64_t steps) {
  constexpr std::uint64_t kWidth = 20;
  const auto full = std::min(kWidth, step * kWidth / std::max<std::uint64_t>(steps, 1));
  return "[" + std::string(full, '#') + std::string(kWidth - full, '.') + "] ";
}

}  // namespace

std::string progress_line(const StepRecord& record, std::uint64_t steps, double eta_seconds,
                          std::string_view unit) {
  std::string line = step_label(record.step, steps);
  line += fmt::format(" | loss {:.4f}", record.loss);
  if (record.eval_loss) line += fmt::format(" | eval loss {:.4f}", *record.eval_loss);
  if (std::isfinite(record.lr)) line += " | lr " + format_learning_rate(record.lr);
  if (!std::isnan(record.grad_norm)) line += fmt::format(" | norm {:.2f}", record.grad_norm);
  if (record.loss_scale) line += fmt::format(" | scale {:g}", *record.loss_scale);
  line += " | " + format_step_time(record.seconds);
  line += fmt::format(" | {} {}/s", format_count(record.tokens_per_second), unit);
  if (record.seconds > 0 && record.nvme_read_bytes + record.nvme_write_bytes > 0) {
    line += fmt::format(" | nvme r {:.2f} w {:.2f} GB/s",
                        static_cast<double>(record.nvme_read_bytes) / record.seconds / 1e9,
                        static_cast<double>(record.nvme_write_bytes) / record.seconds / 1e9);
  }
  if (eta_seconds > 0) line += " | ETA " + format_duration(eta_seconds);
  if (std::isfinite(record.efficiency)) line += " | " + efficiency_label(record);
  return line;
}

ProgressOptions progress_options_for(int fd) {
  ProgressOptions options;
  options.tty = ::isatty(fd) == 1;
  const char* no_colour = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  const bool dumb = terminal == nullptr || std::strcmp(terminal, "dumb") == 0;
  if (dumb) options.tty = false;  // cannot rewrite a line
  options.colour = options.tty && (no_colour == nullptr || *no_colour == '\0');
  winsize size{};
  if (options.tty && ::ioctl(fd, TIOCGWINSZ, &size) == 0) options.columns = size.ws_col;
  options.write = [fd](std::string_view text) { write_all(fd, text); };
  return options;
}

Progress::Progress(ProgressOptions options) : options_(std::move(options)) {
  options_.steps_per_print = std::max<std::uint64_t>(options_.steps_per_print, 1);
  if (!options_.write) options_.write = [](std::string_view text) { write_all(2, text); };
  if (!options_.time_stamp) options_.time_stamp = local_time_stamp;
}

void Progress::step(const StepRecord& record) {
  recent_.push_back(record.seconds);
  if (recent_.size() > kEtaWindow) recent_.pop_front();
  last_ = record;
  last_printed_ = false;
  const bool prints = record.step % options_.steps_per_print == 0 ||
                      (options_.steps > 0 && record.step >= options_.steps);
  if (options_.quiet) return;
  if (prints) {
    print_line(record);
  } else if (options_.tty) {
    print_transient(record);
  }
}

void Progress::print_line(const StepRecord& record) {
  const std::string line = progress_line(record, options_.steps, eta_seconds(), options_.unit);
  clear();
  if (options_.tty) {
    options_.write((options_.colour ? coloured(line, record) : line) + "\n");
  } else {
    options_.write(options_.time_stamp() + " " + line + "\n");
  }
  last_printed_ = true;
}

void Progress::print_transient(const StepRecord& record) {
  std::string line = progress_line(record, options_.steps, eta_seconds(), options_.unit);
  if (options_.steps > 0) line = bar(record.step, options_.steps) + line;
  // A line that wraps cannot be rewritten.
  if (options_.columns > 1 && line.size() >= options_.columns) line.resize(options_.columns - 1);
  options_.write(kClearLine + line);
  transient_ = true;
}

void Progress::clear() {
  if (transient_) options_.write(kClearLine);
  transient_ = false;
}

void Progress::finish() {
  clear();
  if (!last_printed_ && !options_.quiet) print_line(last_);
}

double Progress::eta_seconds() const {
  if (options_.steps == 0 || recent_.empty()) return -1;
  const double mean =
      std::accumulate(recent_.begin(), recent_.end(), 0.0) / static_cast<double>(recent_.size());
  const auto left = options_.steps > last_.step ? options_.steps - last_.step : 0;
  return mean * static_cast<double>(left);
}

}  // namespace zinf::observe
