// Private to the rooms that call LibTorch.
#pragma once

namespace zinf::model {

// Call before using LibTorch on a thread: gives the thread the chosen number of workers and
// installs the allocator.
void attach_compute_thread();

}  // namespace zinf::model
