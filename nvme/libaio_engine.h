// Linux AIO: one context per engine. Truly asynchronous with direct files only; right, if slower,
// with any file.
#pragma once

#include <memory>
#include <string>

#include "nvme/io_engine.h"

namespace zinf::nvme {

// Null with `why` filled in when the context can't be had.
std::unique_ptr<IoEngine> make_libaio_engine(int depth, std::string& why);

}  // namespace zinf::nvme
