#include "engine/base/hash_body.h"

namespace zinf {

const HashKernels& plain_hash_kernels() { return kKernels; }

}  // namespace zinf
