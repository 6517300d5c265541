// io_uring, one ring per engine: SINGLE_ISSUER and DEFER_TASKRUN where the kernel has them,
// registered files.
#pragma once

#include <memory>
#include <string>

#include "nvme/io_engine.h"

namespace zinf::nvme {

// Null with `why` filled in when the ring can't be had.
std::unique_ptr<IoEngine> make_uring_engine(int depth, bool quiet, std::string& why);

}  // namespace zinf::nvme
