#include "engine/cli/doctor_machine.h"

#include <gnu/libc-version.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <sstream>

#include "cpu_optim/dispatch.h"
#include "engine/base/error.h"
#include "engine/base/machine.h"
#include "engine/base/str.h"
#include "engine/cli/command.h"
#include "engine/model/torch_runtime.h"
#include "nvme/huge_buffer.h"
#include "nvme/io_engine.h"
#include "nvme/uring_probe.h"

namespace zinf::cli {

namespace {

constexpr int kProbeDepth = 32;             // the default of io.depth
constexpr Bytes kEnoughLocked = 64 * kMiB;  // of I/O buffers, for small models

std::string first_line(const char* path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// The rest of a "Name:   value" line of a /proc file; empty when absent.
std::string field(const char* path, const std::string& name) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(name, 0) != 0) continue;
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    const auto value = line.find_first_not_of(" \t", colon + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

// Of the flags that kernels look for, those that the processor has.
std::string processor_features() {
  std::istringstream flags(field("/proc/cpuinfo", "flags"));
  const std::string wanted =
      " avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_bf16 amx_tile amx_bf16 ";
  std::string found;
  for (std::string flag; flags >> flag;) {
    if (wanted.find(" " + flag + " ") != std::string::npos)
      found += (found.empty() ? "" : " ") + flag;
  }
  return found.empty() ? "none of those that kernels use" : found;
}

std::string cores() {
  const int allowed = static_cast<int>(usable_processors().size());
  const std::size_t nodes = usable_numa_nodes().size();
  return str(usable_cores(), " usable: ", ::sysconf(_SC_NPROCESSORS_ONLN), " online, ", allowed,
             " in the affinity mask",
             usable_cores() < allowed ? str(", cut by the cgroup's CPU quota") : std::string(),
             nodes > 1 ? str("; on ", nodes, " NUMA nodes") : std::string());
}

std::string memory() {
  const Bytes physical =
      static_cast<Bytes>(::sysconf(_SC_PHYS_PAGES)) * static_cast<Bytes>(::sysconf(_SC_PAGESIZE));
  const Bytes limit = memory_limit();
  std::string text = str(format_bytes(usable_memory()), " usable now of ", format_bytes(physical));
  // The kernel keeps a little of the physical pages, which is no limit.
  if (limit < physical / 100 * 95) text += str(", cgroup limit ", format_bytes(limit));
  return text;
}

std::optional<Bytes> locked_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

std::string locked_memory() {
  const auto locked = locked_limit();
  if (!locked) return "unlimited";
  const bool binds = *locked >= kEnoughLocked || !nvme::registration_refusal(kEnoughLocked).empty();
  return str("at most ", format_bytes(*locked),
             binds ? "" : ", which does not bind this process (root, or CAP_IPC_LOCK)");
}

std::string transparent_mode() {
  const std::string line = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  const auto from = line.find('['), to = line.find(']');
  return from == std::string::npos || to == std::string::npos
             ? "not in this kernel"
             : line.substr(from + 1, to - from - 1);
}

std::string huge_pages() {
  std::string granted;
  try {
    granted = nvme::HugeBuffer(8 * kMiB).huge() ? "granted when asked for" : "not granted";
  } catch (const Error&) {
    granted = "no memory to try";
  }
  const std::string reserved = field("/proc/meminfo", "HugePages_Total");
  return str("transparent: ", transparent_mode(), " (", granted, "); reserved: ",
             reserved.empty() || reserved == "0"
                 ? "none"
                 : str(reserved, " of ", field("/proc/meminfo", "Hugepagesize"), ", ",
                       field("/proc/meminfo", "HugePages_Free"), " free"));
}

std::string engine_state(nvme::EngineKind kind) {
  const std::string why = nvme::why_unavailable(kind, kProbeDepth);
  if (!why.empty()) return str("refused: ", why);
  std::string text = "works";
  if (kind != nvme::EngineKind::kIoUring) return text;
  for (const nvme::UringFeature& feature : nvme::uring_features()) {
    text += str("; ", feature.name, ": ", feature.refusal.empty() ? "yes" : feature.refusal,
                feature.name == "SQPOLL" ? " (not used: it takes a core)" : "");
  }
  return text;
}

}  // namespace

std::vector<DoctorLine> machine_lines() {
  utsname system{};
  ::uname(&system);
  std::vector<DoctorLine> lines;
  const auto add = [&](const std::string& name, const std::string& value) {
    lines.push_back({name, value});
  };
  add("zinf", kVersion);
  add("LibTorch", str(model::torch_version(), model::has_bf16_hardware()
                                                  ? ", bf16 in hardware"
                                                  : ", no bf16 in hardware (fp32 is faster)"));
  add("system", str("Linux ", system.release, ", ", system.machine, ", C library ",
                    ::gnu_get_libc_version()));
  add("processor", field("/proc/cpuinfo", "model name"));
  add("features", processor_features());
  std::string sets;
  for (const optim::Isa isa : optim::available_isas())
    sets += str(sets.empty() ? "" : ", ", name(isa));
  add("kernels", str(name(optim::best_isa()), " (available: ", sets, ")"));
  add("cores", cores());
  add("memory", memory());
  add("locked memory", locked_memory());
  add("huge pages", huge_pages());
  for (const auto kind :
       {nvme::EngineKind::kIoUring, nvme::EngineKind::kLibaio, nvme::EngineKind::kThreads})
    add(std::string(nvme::engine_kind_name(kind)), engine_state(kind));
  add("GPU", "none: this build has no CUDA device; host memory plays its part");
  return lines;
}

std::vector<std::string> machine_advice() {
  std::vector<std::string> advice;
  if (!nvme::why_unavailable(nvme::EngineKind::kIoUring, kProbeDepth).empty()) {
    advice.push_back(
        "io_uring is refused: in a container, allow it in the seccomp profile; else look at "
        "/proc/sys/kernel/io_uring_disabled");
  }
  const auto locked = locked_limit();
  if (locked && *locked < kEnoughLocked && !nvme::registration_refusal(kEnoughLocked).empty()) {
    advice.push_back(str("the limit of locked memory is small (", format_bytes(*locked),
                         "): I/O buffers can't be registered with the kernel, which costs a little "
                         "processor time; raise it with ulimit -l or LimitMEMLOCK="));
  }
  if (transparent_mode() == "never") {
    advice.push_back(
        "transparent huge pages are off: echo madvise > "
        "/sys/kernel/mm/transparent_hugepage/enabled");
  }
  return advice;
}

}  // namespace zinf::cli
