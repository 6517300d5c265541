#include "engine/cli/thread_waits.h"

#include <unistd.h>

#include <cstdlib>

namespace zinf::cli {

void let_waiting_threads_sleep(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  if (setenv("OMP_WAIT_POLICY", "passive", 1) != 0) return;
  execv("/proc/self/exe", argv);
}

}  // namespace zinf::cli
