// pread and pwrite on a few threads: works everywhere, costs a thread switch per block.
#pragma once

#include <memory>

#include "nvme/io_engine.h"

namespace zinf::nvme {

// More threads than this gain nothing at blocks of 256 KiB and up; they mostly sleep.
constexpr int kMostThreads = 16;

// threads: 0 takes as many as the depth, at most kMostThreads.
std::unique_ptr<IoEngine> make_thread_engine(int depth, int threads);

}  // namespace zinf::nvme
