// Numbers as the progress line and the tables print them.
#pragma once

#include <string>

namespace zinf::observe {

std::string format_duration(double seconds);   // "812 ms", "42s", "6m40s", "1h05m", "3d04h"
std::string format_step_time(double seconds);  // "0.42 ms", "812 ms", "12.3 s"
std::string format_count(double value);        // "950", "1.2k", "34.5M"
std::string format_learning_rate(double lr);   // "2.0e-5", "0"
std::string format_percent(double share);      // 0.931 -> "93 %"

}  // namespace zinf::observe
