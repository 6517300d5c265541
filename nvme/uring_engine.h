// io_uring, one ring per engine: SINGLE_ISSUER and DEFER_TASKRUN where the kernel has them,
// registered files.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nvme/io_engine.h"

namespace zinf::nvme {

// Null with `why` filled in when the ring can't be had.
std::unique_ptr<IoEngine> make_uring_engine(int depth, bool quiet, std::string& why);

// The pieces in which memory is registered, in order: the kernel takes at most 1 GiB each.
std::vector<std::span<std::byte>> registration_pieces(std::span<std::byte> memory);

}  // namespace zinf::nvme
