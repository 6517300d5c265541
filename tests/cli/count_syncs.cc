// Preloaded into a program (LD_PRELOAD), counts its calls of fsync and fdatasync, those of swap
// areas (drives, with io.engine: threads) apart from those of other files (of the run folder), and
// writes "FILES DRIVES" to the file that ZINF_COUNT_FILE names when the program ends. Nothing in
// the program knows of it.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

std::atomic<long> files{0}, drives{0};

bool is_area(int file) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  const ssize_t size = ::readlink(link.c_str(), path, sizeof path);
  return size > 0 && std::string(path, static_cast<std::size_t>(size)).ends_with(".zinf-area");
}

int call(const char* name, int file) {
  ++(is_area(file) ? drives : files);
  const auto real = reinterpret_cast<int (*)(int)>(::dlsym(RTLD_NEXT, name));
  return real(file);
}

__attribute__((destructor)) void tell() {
  const char* path = std::getenv("ZINF_COUNT_FILE");
  std::FILE* out = path != nullptr ? std::fopen(path, "w") : nullptr;
  if (out == nullptr) return;
  std::fprintf(out, "%ld %ld\n", files.load(), drives.load());
  std::fclose(out);
}

}  // namespace

extern "C" int fsync(int file) { return call("fsync", file); }

extern "C" int fdatasync(int file) { return call("fdatasync", file); }
