// Owns what LibTorch shares within the process: thread count, random generator, CPU allocator. No
// LibTorch in this header. LibTorch keeps these per process, so these are functions on process-wide
// state; all are thread-safe.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "engine/base/bytes.h"

namespace zinf::model {

// Threads of LibTorch's operations, from the next call on (default: the cores the process may run
// on). Results may depend on it in the last bits, so it belongs in the manifest.
void set_compute_threads(int threads);
int compute_threads();

// "2.11.0", for the manifest.
const char* torch_version();

// What LibTorch's kernels are chosen by: "AVX512", "AVX512, AMX", and the variables that restrict
// them where they are set.
std::string compute_instruction_set();

// Whether the processor multiplies bf16 matrices in hardware (avx512_bf16 or AMX).
bool has_bf16_hardware();
// Whether it has AVX512-BF16 and the other parts of AVX-512 that our kernels are compiled for.
bool has_bf16_dot_products();
// Whether our kernels are used: not beside AMX, which LibTorch's use.
bool uses_bf16_dot_products();

// While it lives, tensors that the calling thread makes come from `workspace`; outside, and on
// other threads, from the heap. One at a time per process. Memory is best fit with coalescing,
// every block aligned to 256 bytes. Running out throws Error(kFailed) with the numbers from inside
// LibTorch, which unwinds cleanly.
class WorkspaceScope {
 public:
  explicit WorkspaceScope(std::span<std::byte> workspace);
  ~WorkspaceScope();
  WorkspaceScope(const WorkspaceScope&) = delete;
  WorkspaceScope& operator=(const WorkspaceScope&) = delete;

  // Largest end of a block so far, in bytes from the workspace's start.
  Bytes peak() const;
  // A bug check: no tensor of the call may outlive it.
  void check_empty() const;
};

}  // namespace zinf::model
