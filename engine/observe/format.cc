#include "engine/observe/format.h"

#include <fmt/format.h>

#include <cmath>

namespace zinf::observe {

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds > 1e10) return "over 300 years";
  if (seconds < 0.9995) return format_step_time(seconds);
  const auto whole = static_cast<long long>(std::llround(seconds));
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
  return fmt::format("{}d{:02}h", whole / 86400, whole % 86400 / 3600);
}

std::string format_step_time(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  if (seconds < 0.00995) return fmt::format("{:.2f} ms", seconds * 1e3);
  if (seconds < 0.0995) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 9.995) return fmt::format("{:.2f} s", seconds);
  if (seconds < 99.95) return fmt::format("{:.1f} s", seconds);
  return fmt::format("{:.0f} s", seconds);
}

std::string format_count(double value) {
  if (!std::isfinite(value)) return "?";
  if (value < 9.95) return fmt::format("{:.1f}", value);
  if (value < 999.5) return fmt::format("{:.0f}", value);
  const char* suffixes[] = {"k", "M", "G", "T", "P"};
  int suffix = 0;
  value /= 1e3;
  while (value >= 999.5 && suffix < 4) {
    value /= 1e3;
    ++suffix;
  }
  const int digits = value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}{}", value, digits, suffixes[suffix]);
}

std::string format_learning_rate(double lr) {
  if (lr == 0) return "0";
  std::string text = fmt::format("{:.1e}", lr);
  // "2.0e-05" as people write it: "2.0e-5".
  const auto exponent = text.find('e');
  if (exponent != std::string::npos && exponent + 3 < text.size() && text[exponent + 2] == '0') {
    text.erase(exponent + 2, 1);
  }
  return text;
}

std::string format_percent(double share) {
  if (!std::isfinite(share)) return "-";
  return fmt::format("{:.0f} %", share * 100);
}

}  // namespace zinf::observe
