// Preloaded into a program (LD_PRELOAD): its Nth read or sync (ZINF_HANG_AT=N) of the file
// ZINF_HANG_FILE never returns, as on a network file system whose server is gone; a file of that
// name and ".hangs" says so. Nothing in the program knows of it.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

std::atomic<long> calls{0};

void hang_if_due(int file) {
  const char* wanted = std::getenv("ZINF_HANG_FILE");
  const char* at = std::getenv("ZINF_HANG_AT");
  if (wanted == nullptr || at == nullptr) return;
  char link[64], path[PATH_MAX + 1] = {};
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  if (::readlink(link, path, PATH_MAX) <= 0 || std::strcmp(path, wanted) != 0) return;
  if (++calls < std::atol(at)) return;
  ::close(::open((std::string(wanted) + ".hangs").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  for (;;) ::pause();
}

using Read = ssize_t (*)(int, void*, size_t, off_t);

}  // namespace

extern "C" ssize_t pread(int file, void* to, size_t bytes, off_t offset) {
  static const auto real = reinterpret_cast<Read>(::dlsym(RTLD_NEXT, "pread"));
  hang_if_due(file);
  return real(file, to, bytes, offset);
}

extern "C" int fsync(int file) {
  static const auto real = reinterpret_cast<int (*)(int)>(::dlsym(RTLD_NEXT, "fsync"));
  hang_if_due(file);
  return real(file);
}
