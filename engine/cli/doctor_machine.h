// What of this machine matters to out-of-core training, asked from the kernel; for `zinf doctor`.
#pragma once

#include <string>
#include <vector>

namespace zinf::cli {

struct DoctorLine {
  std::string name;
  std::string value;
};

// Versions, processor, cores and memory as limited by affinity and cgroup, locked memory, huge
// pages, I/O engines with the reason where one is refused.
std::vector<DoctorLine> machine_lines();

// Advice on what machine_lines() shows; empty when all is well.
std::vector<std::string> machine_advice();

}  // namespace zinf::cli
