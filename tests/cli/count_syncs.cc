// Preloaded into a program (LD_PRELOAD), counts its calls of fsync (files of the run folder) and of
// fdatasync (drives, with io.engine: threads) and writes "FSYNCS FDATASYNCS" to the file that
// ZINF_COUNT_FILE names when the program ends. Nothing in the program knows of it.
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace {

std::atomic<long> files{0}, drives{0};

int call(const char* name, int file) {
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

extern "C" int fsync(int file) {
  ++files;
  return call("fsync", file);
}

extern "C" int fdatasync(int file) {
  ++drives;
  return call("fdatasync", file);
}
