#include "nvme/uring_engine.h"

#include <fmt/format.h>
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "nvme/errno_text.h"
#include "nvme/plug.h"

namespace zinf::nvme {

namespace {

constexpr std::uint64_t kWakeTag = std::uint64_t{1} << 63;
constexpr unsigned kRegisteredFiles = 64;
constexpr unsigned kRegisteredBuffers = 1024;
constexpr Bytes kLargestBuffer = kGiB;  // the kernel registers no larger piece

std::string setup_refusal(int error) {
  if (error == EPERM || error == EACCES) {
    int setting = -1;
    std::ifstream("/proc/sys/kernel/io_uring_disabled") >> setting;
    if (setting > 0) {
      return fmt::format("io_uring_setup: {}; sysctl kernel.io_uring_disabled is {} (0 allows it)",
                         errno_text(error), setting);
    }
    return fmt::format(
        "io_uring_setup: {}; a sandbox (seccomp profile of the container) forbids it",
        errno_text(error));
  }
  if (error == ENOSYS) {
    return fmt::format(
        "io_uring_setup: {}; the kernel is built without it or a seccomp profile hides it",
        errno_text(error));
  }
  if (error == ENOMEM) {
    rlimit limit{};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    return fmt::format("io_uring_setup: {}; the locked-memory limit (ulimit -l) is {} KiB",
                       errno_text(error), limit.rlim_cur / 1024);
  }
  return fmt::format("io_uring_setup: {}", errno_text(error));
}

class UringEngine final : public IoEngine {
 public:
  explicit UringEngine(bool quiet) : quiet_(quiet) {}
  ~UringEngine() override {
    // Memory of blocks in flight must not be written once we are gone.
    if (ring_ready_) {
      std::array<IoCompletion, 64> sink;
      while (in_flight_ > 0) reap(sink, -1);
      // The kernel takes a ring apart some time after its end; until then registered files would
      // stay open and locked.
      if (registered_) io_uring_unregister_files(&ring_);
      if (!pinned_.empty()) io_uring_unregister_buffers(&ring_);
      io_uring_queue_exit(&ring_);
    }
    if (wake_descriptor_ >= 0) ::close(wake_descriptor_);
  }

  std::string open(int depth) {
    depth_ = depth;
    // One more slot for the poll that wake() completes.
    const unsigned entries = static_cast<unsigned>(depth) + 2;
    int result = -EINVAL;
    for (const unsigned flags :
         {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
          IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN, IORING_SETUP_COOP_TASKRUN, 0u}) {
      io_uring_params params{};
      params.flags = flags;
      result = io_uring_queue_init_params(entries, &ring_, &params);
      if (result == 0) {
        features_ = params.features;
        break;
      }
      if (result != -EINVAL) break;
    }
    if (result < 0) return setup_refusal(-result);
    ring_ready_ = true;
    if (std::string missing = missing_feature(); !missing.empty()) return missing;
    wake_descriptor_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_descriptor_ < 0) return fmt::format("eventfd: {}", errno_text(errno));
    registered_ = io_uring_register_files_sparse(&ring_, kRegisteredFiles) == 0;
    arm_wake();
    return "";
  }

  std::string_view name() const override { return "io_uring"; }
  EngineLimits limits() const override { return {depth_, kGiB}; }

  // Returned: below kRegisteredFiles a slot of the ring's table, else the descriptor itself,
  // shifted up.
  int add_file(int descriptor) override {
    if (registered_ && next_slot_ < kRegisteredFiles) {
      if (io_uring_register_files_update(&ring_, next_slot_, &descriptor, 1) == 1) {
        return static_cast<int>(next_slot_++);
      }
    }
    return descriptor + static_cast<int>(kRegisteredFiles);
  }

  Bytes add_memory(std::span<std::byte> memory) override {
    if (!memory.empty() && pinned_.empty() &&
        io_uring_register_buffers_sparse(&ring_, kRegisteredBuffers) < 0)
      return 0;  // a kernel before 5.19: every block is pinned by itself
    Bytes registered = 0;
    for (const auto piece : registration_pieces(memory)) {
      if (pinned_.size() == kRegisteredBuffers) break;
      const iovec range{piece.data(), piece.size()};
      const __u64 tag = 0;
      const auto slot = static_cast<unsigned>(pinned_.size());
      if (const int result = io_uring_register_buffers_update_tag(&ring_, slot, &range, &tag, 1);
          result < 0) {
        say_not_pinned(memory.size(), memory.size() - registered, -result);
        break;
      }
      pinned_.push_back(piece);
      registered += piece.size();
    }
    if (pinned_.empty()) io_uring_unregister_buffers(&ring_);
    return registered;
  }

  std::size_t submit(std::span<const IoBlock> blocks) override {
    std::size_t taken = 0;
    for (const IoBlock& block : blocks) {
      if (in_flight_ == depth_) break;
      io_uring_sqe* entry = io_uring_get_sqe(&ring_);
      if (!entry) break;
      prepare(entry, block);
      ++in_flight_;
      ++taken;
      // What the kernel does not take now goes with the next call.
      if (block.bytes >= kMergeBelow && io_uring_sq_ready(&ring_) >= kUnplugged)
        check(io_uring_submit(&ring_));
    }
    return taken;
  }

  std::size_t reap(std::span<IoCompletion> out, double timeout_seconds) override {
    if (io_uring_cq_ready(&ring_) == 0 || io_uring_sq_ready(&ring_) > 0) enter(timeout_seconds);
    std::size_t count = 0;
    io_uring_cqe* entry = nullptr;
    while (count < out.size() && io_uring_peek_cqe(&ring_, &entry) == 0) {
      const std::uint64_t tag = io_uring_cqe_get_data64(entry);
      const std::int32_t result = entry->res;
      io_uring_cqe_seen(&ring_, entry);
      if (tag == kWakeTag) {
        std::uint64_t value = 0;
        while (::read(wake_descriptor_, &value, sizeof value) > 0) continue;
        arm_wake();
      } else {
        out[count++] = {tag, result};
        --in_flight_;
      }
    }
    return count;
  }

  int in_flight() const override { return in_flight_; }

  void wake() override {
    const std::uint64_t one = 1;
    // A full counter means that a wake-up is already waiting.
    [[maybe_unused]] const auto written = ::write(wake_descriptor_, &one, sizeof one);
  }

 private:
  std::string missing_feature() {
    if (!(features_ & IORING_FEAT_EXT_ARG))
      return "the kernel's io_uring lacks timed waits (5.11 has them)";
    io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
    if (!probe) return "the kernel's io_uring can't be asked for its operations (5.6 can)";
    std::string missing;
    for (const auto& [code, label] : {std::pair{IORING_OP_READ, "READ"},
                                      {IORING_OP_WRITE, "WRITE"},
                                      {IORING_OP_READ_FIXED, "READ_FIXED"},
                                      {IORING_OP_WRITE_FIXED, "WRITE_FIXED"},
                                      {IORING_OP_FSYNC, "FSYNC"},
                                      {IORING_OP_POLL_ADD, "POLL_ADD"}}) {
      if (!io_uring_opcode_supported(probe, code)) {
        missing = fmt::format("the kernel's io_uring lacks the operation {}", label);
      }
    }
    io_uring_free_probe(probe);
    return missing;
  }

  void arm_wake() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    ZINF_CHECK(entry, "the ring keeps one slot for wake()");
    io_uring_prep_poll_add(entry, wake_descriptor_, POLLIN);
    io_uring_sqe_set_data64(entry, kWakeTag);
  }

  // Once: every ring of a run is offered the same memory, and how much of it the next one may still
  // lock says nothing new.
  void say_not_pinned(Bytes asked, Bytes refused, int error) const {
    static std::atomic<bool> said = false;
    if (quiet_ || said.exchange(true)) return;
    rlimit limit{};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    const std::string part =
        refused < asked ? fmt::format("{} of the ", format_bytes(refused)) : std::string();
    log::warning(fmt::format(
        "{}{} of I/O buffers can't be registered with the kernel ({}; the locked-memory limit, "
        "ulimit -l, is {} KiB): every transfer pins its own pages, a little more processor time",
        part, format_bytes(asked), errno_text(error), limit.rlim_cur / 1024));
  }

  // The registered piece that holds the whole block, or -1.
  int buffer_of(const IoBlock& block) const {
    for (std::size_t i = 0; i < pinned_.size(); ++i) {
      const std::byte* start = pinned_[i].data();
      if (block.memory >= start && block.memory + block.bytes <= start + pinned_[i].size())
        return static_cast<int>(i);
    }
    return -1;
  }

  void prepare(io_uring_sqe* entry, const IoBlock& block) {
    const bool slot = block.file < static_cast<int>(kRegisteredFiles);
    const int file = slot ? block.file : block.file - static_cast<int>(kRegisteredFiles);
    const auto bytes = static_cast<unsigned>(block.bytes);
    const int buffer = block.op == IoOp::kSync ? -1 : buffer_of(block);
    if (block.op == IoOp::kSync) {
      io_uring_prep_fsync(entry, file, IORING_FSYNC_DATASYNC);
    } else if (block.op == IoOp::kRead && buffer < 0) {
      io_uring_prep_read(entry, file, block.memory, bytes, block.offset);
    } else if (block.op == IoOp::kRead) {
      io_uring_prep_read_fixed(entry, file, block.memory, bytes, block.offset, buffer);
    } else if (buffer < 0) {
      io_uring_prep_write(entry, file, block.memory, bytes, block.offset);
    } else {
      io_uring_prep_write_fixed(entry, file, block.memory, bytes, block.offset, buffer);
    }
    if (slot) entry->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data64(entry, block.tag);
  }

  void enter(double timeout_seconds) {
    int result = 0;
    if (timeout_seconds == 0) {
      result = io_uring_submit_and_get_events(&ring_);
    } else if (timeout_seconds < 0) {
      result = io_uring_submit_and_wait(&ring_, 1);
    } else {
      __kernel_timespec time{};
      time.tv_sec = static_cast<std::int64_t>(timeout_seconds);
      time.tv_nsec = static_cast<long>((timeout_seconds - static_cast<double>(time.tv_sec)) * 1e9);
      io_uring_cqe* first = nullptr;
      result = io_uring_submit_and_wait_timeout(&ring_, &first, 1, &time, nullptr);
    }
    check(result);
  }

  // EAGAIN, EBUSY, ENOMEM: the kernel is short of memory; what is in the queue is submitted with
  // the next call.
  static void check(int result) {
    const bool harmless = result >= 0 || result == -ETIME || result == -EINTR ||
                          result == -EAGAIN || result == -EBUSY || result == -ENOMEM;
    ZINF_CHECK(harmless, "io_uring_enter: " + errno_text(-result));
  }

  const bool quiet_;
  io_uring ring_{};
  unsigned features_ = 0;
  unsigned next_slot_ = 0;
  int depth_ = 0;
  int in_flight_ = 0;
  int wake_descriptor_ = -1;
  std::vector<std::span<std::byte>> pinned_;  // by the number of their slot
  bool ring_ready_ = false;
  bool registered_ = false;
};

}  // namespace

std::vector<std::span<std::byte>> registration_pieces(std::span<std::byte> memory) {
  std::vector<std::span<std::byte>> pieces;
  while (!memory.empty()) {
    pieces.push_back(memory.first(std::min<std::size_t>(memory.size(), kLargestBuffer)));
    memory = memory.subspan(pieces.back().size());
  }
  return pieces;
}

std::unique_ptr<IoEngine> make_uring_engine(int depth, bool quiet, std::string& why) {
  if (depth > 32000) {
    why = fmt::format("a ring holds at most 32000 blocks, {} were asked for", depth);
    return nullptr;
  }
  auto engine = std::make_unique<UringEngine>(quiet);
  why = engine->open(depth);
  if (!why.empty()) return nullptr;
  return engine;
}

}  // namespace zinf::nvme
