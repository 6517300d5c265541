#include "engine/base/error.h"

#include <cstdio>
#include <cstdlib>

namespace zinf {

void check_failed(const char* condition, const char* file, int line, const std::string& detail) {
  std::fprintf(stderr, "zinf: internal check failed at %s:%d: %s (%s). This is a bug in zinf.\n",
               file, line, condition, detail.c_str());
  std::abort();
}

}  // namespace zinf
