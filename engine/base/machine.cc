#include "engine/base/machine.h"

#include <sched.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>
#include <vector>

#include "engine/base/str.h"

namespace zinf {

namespace {

constexpr char kCpuFolder[] = "/sys/devices/system/cpu";
constexpr char kNodeFolder[] = "/sys/devices/system/node";
constexpr Bytes kNoLimit = std::numeric_limits<Bytes>::max();

// A field of a "Name:   123 kB" file, in bytes; 0 when absent.
Bytes kilobyte_field(const char* path, const std::string& name) {
  std::ifstream in(path);
  std::string line;
  while (std::getline(in, line)) {
    if (line.rfind(name + ":", 0) != 0) continue;
    return std::stoull(line.substr(name.size() + 1)) * kKiB;
  }
  return 0;
}

// A cgroup file with one number; "max", absent or absurdly large (v1's "no limit") means kNoLimit.
Bytes cgroup_number(const std::string& path) {
  std::ifstream in(path);
  std::string word;
  if (!(in >> word) || word == "max") return kNoLimit;
  try {
    const Bytes value = std::stoull(word);
    return value > (Bytes{1} << 60) ? kNoLimit : value;
  } catch (const std::exception&) {
    return kNoLimit;
  }
}

// This process's folder of a cgroup hierarchy: v1 controller name, or "" for v2. Empty when not
// found.
std::string cgroup_path(const std::string& controller) {
  std::ifstream in("/proc/self/cgroup");
  std::string line;
  while (std::getline(in, line)) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controller.empty() && names == ",,") return path;
    if (!controller.empty() && names.find("," + controller + ",") != std::string::npos) return path;
  }
  return "";
}

// Smallest "limit" and the matching headroom "limit - usage" from here to the root of the
// hierarchy.
struct CgroupMemory {
  Bytes limit = kNoLimit;
  Bytes headroom = kNoLimit;
};

CgroupMemory walk_up(const std::string& mount, std::string path, const char* limit_file,
                     const char* usage_file) {
  CgroupMemory found;
  while (true) {
    const Bytes limit = cgroup_number(mount + path + "/" + limit_file);
    if (limit != kNoLimit) {
      const Bytes usage = cgroup_number(mount + path + "/" + usage_file);
      found.limit = std::min(found.limit, limit);
      if (usage != kNoLimit)
        found.headroom = std::min(found.headroom, limit > usage ? limit - usage : 0);
    }
    if (path.empty() || path == "/") return found;
    path = path.substr(0, path.rfind('/'));
  }
}

CgroupMemory cgroup_memory() {
  const std::string v1 = cgroup_path("memory");
  if (!v1.empty()) {
    return walk_up("/sys/fs/cgroup/memory", v1, "memory.limit_in_bytes", "memory.usage_in_bytes");
  }
  const std::string v2 = cgroup_path("");
  if (!v2.empty()) return walk_up("/sys/fs/cgroup", v2, "memory.max", "memory.current");
  return {};
}

// "0-3,8": the processors of a list in /sys.
std::vector<int> processors_of(const std::string& list) {
  std::vector<int> processors;
  std::istringstream ranges(list);
  for (std::string range; std::getline(ranges, range, ',');) {
    std::istringstream ends(range);
    int first = 0, last = 0;
    char dash = 0;
    if (!(ends >> first)) continue;
    if (!(ends >> dash >> last)) last = first;
    for (int processor = first; processor <= last; ++processor) processors.push_back(processor);
  }
  return processors;
}

int within_quota(int cores) {
  std::ifstream in("/sys/fs/cgroup" + cgroup_path("") + "/cpu.max");
  double quota = 0, period = 0;
  if (in >> quota >> period && period > 0)
    cores = std::min(cores, static_cast<int>(std::ceil(quota / period)));
  return std::max(cores, 1);
}

}  // namespace

std::vector<int> usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> processors;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return processors;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) processors.push_back(i);
  }
  return processors;
}

int usable_cores() { return within_quota(static_cast<int>(usable_processors().size())); }

int usable_physical_cores() {
  return within_quota(count_physical_cores(usable_processors(), kCpuFolder));
}

int count_physical_cores(std::span<const int> processors, const std::string& folder) {
  std::set<std::string> cores;
  for (const int processor : processors) {
    std::ifstream in(str(folder, "/cpu", processor, "/topology/thread_siblings_list"));
    std::string siblings;
    cores.insert(in >> siblings ? siblings : str("alone ", processor));
  }
  return static_cast<int>(cores.size());
}

std::vector<NumaNode> usable_numa_nodes() {
  return numa_nodes(usable_processors(), kNodeFolder, kCpuFolder);
}

std::vector<NumaNode> numa_nodes(std::span<const int> processors, const std::string& node_folder,
                                 const std::string& cpu_folder) {
  std::vector<NumaNode> nodes;
  std::string online;
  std::ifstream(node_folder + "/online") >> online;
  for (const int id : processors_of(online)) {
    std::ifstream in(str(node_folder, "/node", id, "/cpulist"));
    std::string list;
    in >> list;
    NumaNode node{id, {}, 0};
    for (const int processor : processors_of(list)) {
      if (std::find(processors.begin(), processors.end(), processor) != processors.end())
        node.processors.push_back(processor);
    }
    if (!node.processors.empty()) nodes.push_back(std::move(node));
  }
  if (nodes.empty()) nodes.push_back({0, {processors.begin(), processors.end()}, 0});
  for (NumaNode& node : nodes)
    node.physical_cores = std::max(1, count_physical_cores(node.processors, cpu_folder));
  return nodes;
}

Bytes usable_memory() {
  return std::min(kilobyte_field("/proc/meminfo", "MemAvailable"), cgroup_memory().headroom);
}

Bytes memory_limit() {
  return std::min(kilobyte_field("/proc/meminfo", "MemTotal"), cgroup_memory().limit);
}

// Reserved huge pages are not counted as resident by the kernel.
Bytes resident_bytes() {
  return kilobyte_field("/proc/self/status", "VmRSS") +
         kilobyte_field("/proc/self/status", "HugetlbPages");
}
Bytes peak_resident_bytes() {
  return kilobyte_field("/proc/self/status", "VmHWM") +
         kilobyte_field("/proc/self/status", "HugetlbPages");
}

std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const auto colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "unknown processor";
}

std::string machine_line() {
  utsname system{};
  uname(&system);
  return str(processor_name(), ", ", usable_cores(), " cores, ", format_bytes(memory_limit()),
             ", Linux ", system.release);
}

}  // namespace zinf
