// Preloaded into a program (LD_PRELOAD), kills it with SIGKILL at its Nth call of rename, unlink or
// fsync (ZINF_DIE_AT=N), before the call or after it as N is even or odd: the calls by which a
// commit is published or dropped and a kept checkpoint is made. Or kills it once it has renamed a
// file to the name in ZINF_DIE_AFTER, or removed the one in ZINF_DIE_AFTER_REMOVING: after the
// manifest of one step. Nothing in the program knows of it.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>

namespace {

std::atomic<long> calls{0};

long die_at() {
  static const long at = [] {
    const char* text = std::getenv("ZINF_DIE_AT");
    return text != nullptr ? std::atol(text) : 0;
  }();
  return at;
}

template <typename Function, typename... Arguments>
int call(const char* name, Arguments... arguments) {
  static const auto real = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
  const long number = ++calls;
  if (number == die_at() && number % 2 == 0) ::kill(::getpid(), SIGKILL);
  const int result = real(arguments...);
  if (number == die_at()) ::kill(::getpid(), SIGKILL);
  return result;
}

bool die_after(const char* variable, const char* path) {
  const char* name = std::getenv(variable);
  const char* file = std::strrchr(path, '/');
  return name != nullptr && std::strcmp(file != nullptr ? file + 1 : path, name) == 0;
}

}  // namespace

// status.json is renamed too, each step; it is no part of a commit.
extern "C" int rename(const char* from, const char* to) noexcept {
  if (std::strstr(to, "status.json") != nullptr) {
    static const auto real =
        reinterpret_cast<int (*)(const char*, const char*)>(::dlsym(RTLD_NEXT, "rename"));
    return real(from, to);
  }
  const int result = call<int (*)(const char*, const char*)>("rename", from, to);
  if (die_after("ZINF_DIE_AFTER", to)) ::kill(::getpid(), SIGKILL);
  return result;
}

extern "C" int unlink(const char* path) noexcept {
  const int result = call<int (*)(const char*)>("unlink", path);
  if (result == 0 && die_after("ZINF_DIE_AFTER_REMOVING", path)) ::kill(::getpid(), SIGKILL);
  return result;
}

extern "C" int fsync(int file) { return call<int (*)(int)>("fsync", file); }
