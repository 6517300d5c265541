// What engines know of the kernel's plug: requests that arrive in one system call of more than
// kUnplugged are held back and merged with their neighbours. Large blocks have the size that the
// drive likes best, so merging only makes fewer and larger requests of them, which also complete
// together and are merged again.
#pragma once

#include <cstddef>

#include "engine/base/bytes.h"

namespace zinf::nvme {

constexpr std::size_t kUnplugged = 2;      // IO_PLUG_THRESHOLD, AIO_PLUG_THRESHOLD
constexpr Bytes kMergeBelow = 128 * kKiB;  // smaller blocks gain by merging

}  // namespace zinf::nvme
