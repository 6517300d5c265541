// How the threads of LibTorch's OpenMP wait for work.
#pragma once

namespace zinf::cli {

// libgomp lets waiting threads spin by default, which takes cores from the optimizer and the I/O
// lanes beside the computation. It reads its settings when it is loaded, so where the user has set
// none this starts the program once more with threads that sleep. Returns when nothing is to be
// done, or when that failed (it is only speed).
void let_waiting_threads_sleep(char** argv);

}  // namespace zinf::cli
