#if defined(__x86_64__)
#include "engine/base/hash_body.h"

namespace zinf {

const HashKernels& avx2_hash_kernels() { return kKernels; }

}  // namespace zinf
#endif
