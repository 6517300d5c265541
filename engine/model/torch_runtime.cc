#include "engine/model/torch_runtime.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/core/CPUAllocator.h>
#include <torch/headeronly/version.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>

#include "engine/base/error.h"
#include "engine/base/machine.h"
#include "engine/base/str.h"
#include "engine/model/torch_thread.h"
#include "engine/model/workspace_arena.h"

namespace zinf::model {
namespace {

// Set on the thread that opened a WorkspaceScope. LibTorch's own workers do not allocate tensors.
thread_local bool in_workspace = false;

// LibTorch knows one CPU allocator per process. A block's home is told by its address.
class SwitchingAllocator final : public c10::Allocator {
 public:
  static SwitchingAllocator& instance() {
    // Never destroyed: tensors in static storage may outlive everything else.
    static SwitchingAllocator* const allocator = install();
    return *allocator;
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    void* block = bytes == 0 ? nullptr : take(bytes);
    return {block, block, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

  void open(std::span<std::byte> memory) {
    const std::lock_guard lock(mutex_);
    ZINF_CHECK(arena_ == nullptr, "a workspace is open already");
    arena_ = std::make_unique<WorkspaceArena>(memory);
    in_workspace = true;
  }
  void close() {
    const std::lock_guard lock(mutex_);
    arena_.reset();
    in_workspace = false;
  }
  Bytes peak() {
    const std::lock_guard lock(mutex_);
    return arena_->peak();
  }
  void check_empty() {
    const std::lock_guard lock(mutex_);
    ZINF_CHECK(arena_->blocks() == 0,
               str(arena_->blocks(), " tensors of ", arena_->used(), " bytes outlived their call"));
  }

 private:
  static SwitchingAllocator* install() {
    auto* allocator = new SwitchingAllocator;
    c10::SetCPUAllocator(allocator, 1);
    return allocator;
  }

  void* take(std::size_t bytes) {
    if (in_workspace) {
      const std::lock_guard lock(mutex_);
      if (arena_) return arena_->allocate(bytes);
    }
    void* block = nullptr;
    if (posix_memalign(&block, WorkspaceArena::kAlignment, bytes) != 0) throw std::bad_alloc();
    return block;
  }

  static void release(void* block) {
    if (block == nullptr) return;
    SwitchingAllocator& self = instance();
    {
      const std::lock_guard lock(self.mutex_);
      if (self.arena_ && self.arena_->owns(block)) return self.arena_->release(block);
    }
    std::free(block);
  }

  std::mutex mutex_;
  std::unique_ptr<WorkspaceArena> arena_;
};

bool has_amx() {
#if defined(__x86_64__)
  // CPUID leaf 7, EDX bit 22: AMX-BF16.
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 22 & 1) != 0;
#else
  return false;
#endif
}

std::atomic<int>& wanted_threads() {
  static std::atomic<int> threads{usable_physical_cores()};
  return threads;
}

}  // namespace

void set_compute_threads(int threads) {
  ZINF_CHECK(threads >= 1, str("compute threads: ", threads));
  wanted_threads() = threads;
}
int compute_threads() { return wanted_threads(); }

const char* torch_version() { return TORCH_VERSION; }

std::string compute_instruction_set() {
  std::string text = at::get_cpu_capability();
#if defined(__x86_64__)
  // For oneDNN's matrix products and our own kernels.
  if (has_bf16_hardware()) text += ", AVX512-BF16";
  if (has_amx()) text += ", AMX";
#endif
  for (const char* name :
       {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR"}) {
    if (const char* value = std::getenv(name)) text += str(", ", name, "=", value);
  }
  return text;
}

bool has_bf16_hardware() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") > 0;  // processors with AMX-bf16 have it too
#else
  return false;
#endif
}

bool has_bf16_dot_products() {
#if defined(__x86_64__)
  static const bool all =
      __builtin_cpu_supports("avx512f") > 0 && __builtin_cpu_supports("avx512bw") > 0 &&
      __builtin_cpu_supports("avx512dq") > 0 && __builtin_cpu_supports("avx512vl") > 0 &&
      __builtin_cpu_supports("avx512bf16") > 0 && __builtin_cpu_supports("fma") > 0;
  return all;
#else
  return false;
#endif
}

bool uses_bf16_dot_products() {
  static const bool uses = has_bf16_dot_products() && !has_amx();
  return uses;
}

void attach_compute_thread() {
  // OpenMP and MKL keep the count per thread.
  thread_local int set = 0;
  SwitchingAllocator::instance();
  const int wanted = wanted_threads();
  if (set == wanted) return;
  at::set_num_threads(wanted);
  set = wanted;
}

WorkspaceScope::WorkspaceScope(std::span<std::byte> workspace) {
  SwitchingAllocator::instance().open(workspace);
}
WorkspaceScope::~WorkspaceScope() { SwitchingAllocator::instance().close(); }
Bytes WorkspaceScope::peak() const { return SwitchingAllocator::instance().peak(); }
void WorkspaceScope::check_empty() const { SwitchingAllocator::instance().check_empty(); }

}  // namespace zinf::model
