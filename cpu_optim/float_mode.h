// Internal: the processor's floating-point mode while a kernel runs. A caller or library may have
// set "denormals are zero"; results must not depend on that.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace zinf::optim {

#if defined(__x86_64__)
class DefaultFloatMode {
 public:
  DefaultFloatMode() : saved_(_mm_getcsr()) {
    _mm_setcsr(0x1F80);
  }  // round to nearest, denormals kept
  ~DefaultFloatMode() { _mm_setcsr(saved_); }
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
  unsigned saved_;
};
#else
class DefaultFloatMode {
 public:
  DefaultFloatMode() {}
  ~DefaultFloatMode() {}
};
#endif

}  // namespace zinf::optim
