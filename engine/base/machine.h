// What this process may use, asked from the machine: cores by affinity and cgroup, memory by cgroup
// and /proc.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/base/bytes.h"

namespace zinf {

// In the affinity mask, ascending.
std::vector<int> usable_processors();
// How many those are, cut by the cgroup's CPU quota; at least 1.
int usable_cores();
// The same with each physical core counted once: the threads that compute and optimizer take. What
// they leave, second hardware threads and time in which they wait, is for I/O and data preparation.
int usable_physical_cores();
// How many physical cores these processors are on, by cpuN/topology/thread_siblings_list in this
// folder. A processor without that file counts as a core.
int count_physical_cores(std::span<const int> processors, const std::string& folder);

// Memory that some processors are nearer to than others.
struct NumaNode {
  int id = 0;
  std::vector<int> processors;  // usable ones, ascending
  int physical_cores = 1;
};
// Those with usable processors, ascending; one node with all of them where the system names none.
std::vector<NumaNode> usable_numa_nodes();
// By nodeN/cpulist and cpuN/topology in these folders.
std::vector<NumaNode> numa_nodes(std::span<const int> processors, const std::string& node_folder,
                                 const std::string& cpu_folder);
// The smaller of MemAvailable and what the cgroup (v1 or v2) still allows.
Bytes usable_memory();
// The cgroup's limit, or physical memory when there is none.
Bytes memory_limit();
// Resident set of this process now, and its peak (VmRSS, VmHWM), reserved huge pages included.
Bytes resident_bytes();
Bytes peak_resident_bytes();
// As /proc/cpuinfo calls it; "unknown processor".
std::string processor_name();
// One line: processor name, cores, memory, kernel.
std::string machine_line();

}  // namespace zinf
