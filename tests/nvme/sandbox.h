// Makes the current process (a forked child) as limited as containers do: seccomp filters, limits,
// no privileges.
#pragma once

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace zinf::nvme {

inline void install_filter(std::vector<sock_filter> code) {
  sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    throw std::runtime_error("can't install a seccomp filter");
  }
}

// The system call fails with this errno from now on.
inline void refuse_system_call(long number, int error) {
  install_filter({BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<__u32>(number), 0, 1),
                  BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<__u32>(error)),
                  BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)});
}

// openat() with O_DIRECT fails with EINVAL, as on file systems without direct I/O.
inline void refuse_direct_open() {
  install_filter({BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_openat, 0, 3),
                  BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
                  BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_DIRECT, 0, 1),
                  BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
                  BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)});
}

inline void set_limit(int resource, rlim_t value) {
  const rlimit limit{value, value};
  if (::setrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0)
    throw std::runtime_error("setrlimit");
}

// Root is exempt from some limits; nobody is not.
inline void become_nobody() {
  if (::getuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0))
    throw std::runtime_error("setuid");
}

// Whether this process may lock more memory than its limit says: CAP_IPC_LOCK, and not just that
// of a user namespace.
inline bool may_exceed_locked_memory() {
  std::uint64_t inside = 1, outside = 1, capabilities = 0;
  std::ifstream("/proc/self/uid_map") >> inside >> outside;
  std::ifstream status("/proc/self/status");
  for (std::string name; status >> name;) {
    if (name == "CapEff:") status >> std::hex >> capabilities;
  }
  return inside == 0 && outside == 0 && (capabilities >> 14 & 1) != 0;
}

}  // namespace zinf::nvme
