// Preloaded into a program (LD_PRELOAD), stops it (SIGSTOP) after its first rename to a path that
// ends with ZINF_STOP_AT, until it is told to go on: whatever a test does meanwhile happens at that
// point of the run. Nothing in the program knows of it.
#include <dlfcn.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string_view>

extern "C" int rename(const char* from, const char* to) noexcept {
  static const auto real =
      reinterpret_cast<int (*)(const char*, const char*)>(::dlsym(RTLD_NEXT, "rename"));
  static bool stopped = false;
  const int result = real(from, to);
  const char* at = std::getenv("ZINF_STOP_AT");
  if (at != nullptr && !stopped && std::string_view(to).ends_with(at)) {
    stopped = true;
    ::kill(::getpid(), SIGSTOP);
  }
  return result;
}
