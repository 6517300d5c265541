#include "nvme/libaio_engine.h"

#include <fmt/format.h>
#include <libaio.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <fstream>
#include <vector>

#include "engine/base/error.h"
#include "nvme/errno_text.h"
#include "nvme/plug.h"

namespace zinf::nvme {

namespace {

std::string setup_refusal(int error, int depth) {
  if (error == EAGAIN || error == EINVAL) {  // EINVAL: far more than any limit
    long used = 0, most = 0;
    std::ifstream("/proc/sys/fs/aio-nr") >> used;
    std::ifstream("/proc/sys/fs/aio-max-nr") >> most;
    return fmt::format(
        "io_setup: {}; {} event slots were asked for, sysctl fs.aio-max-nr is {} and {} are in use",
        errno_text(error), depth, most, used);
  }
  if (error == EPERM || error == ENOSYS) {
    return fmt::format(
        "io_setup: {}; the kernel is built without it or a seccomp profile forbids it",
        errno_text(error));
  }
  return fmt::format("io_setup: {}", errno_text(error));
}

class LibaioEngine final : public IoEngine {
 public:
  ~LibaioEngine() override {
    if (context_) {
      std::array<IoCompletion, 64> sink;
      while (in_flight_ > 0) reap(sink, -1);
      io_destroy(context_);
    }
    if (wake_descriptor_ >= 0) ::close(wake_descriptor_);
  }

  std::string open(int depth) {
    depth_ = depth;
    const int result =
        io_setup(depth + 1, &context_);  // one more for the poll that wake() completes
    if (result < 0) return setup_refusal(-result, depth + 1);
    wake_descriptor_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_descriptor_ < 0) return fmt::format("eventfd: {}", errno_text(errno));
    if (const int armed = arm_wake(); armed < 0) {
      return fmt::format("libaio lacks poll (kernel 4.19 has it): {}", errno_text(-armed));
    }
    entries_.resize(static_cast<std::size_t>(depth));
    for (iocb& entry : entries_) free_.push_back(&entry);
    events_.resize(static_cast<std::size_t>(depth) + 1);
    return "";
  }

  std::string_view name() const override { return "libaio"; }
  EngineLimits limits() const override { return {depth_, kGiB}; }
  int add_file(int descriptor) override { return descriptor; }

  std::size_t submit(std::span<const IoBlock> blocks) override {
    std::vector<iocb*> batch;
    for (const IoBlock& block : blocks) {
      if (batch.size() == free_.size()) break;
      iocb* entry = free_[free_.size() - 1 - batch.size()];
      prepare(entry, block);
      batch.push_back(entry);
    }
    std::size_t taken = 0;
    while (taken < batch.size()) {
      const bool merge = batch[taken]->u.c.nbytes < kMergeBelow;
      const std::size_t left = batch.size() - taken;
      const int result =
          io_submit(context_, static_cast<long>(merge ? left : std::min(left, kUnplugged)),
                    batch.data() + taken);
      if (result == -EINTR) continue;
      if (result == -EAGAIN || result == 0) break;
      if (result < 0) {
        // The kernel refuses the first of the batch at once: that is this block's completion.
        refused_.push_back({reinterpret_cast<std::uint64_t>(batch[taken]->data), result});
        spare_.push_back(batch[taken++]);
      } else {
        in_flight_ += result;
        taken += static_cast<std::size_t>(result);
      }
    }
    free_.resize(free_.size() - taken);
    for (iocb* entry : spare_) free_.push_back(entry);
    spare_.clear();
    return taken;
  }

  std::size_t reap(std::span<IoCompletion> out, double timeout_seconds) override {
    std::size_t count = 0;
    while (count < out.size() && !refused_.empty()) {
      out[count++] = refused_.front();
      refused_.pop_front();
    }
    if (count == out.size()) return count;
    timespec time{};
    timespec* limit = &time;
    if (count > 0) timeout_seconds = 0;
    if (timeout_seconds < 0) {
      limit = nullptr;
    } else {
      time.tv_sec = static_cast<time_t>(timeout_seconds);
      time.tv_nsec = static_cast<long>((timeout_seconds - static_cast<double>(time.tv_sec)) * 1e9);
    }
    const long most = static_cast<long>(std::min(out.size() - count, events_.size()));
    const int result =
        io_getevents(context_, timeout_seconds == 0 ? 0 : 1, most, events_.data(), limit);
    ZINF_CHECK(result >= 0 || result == -EINTR, "io_getevents: " + errno_text(-result));
    for (int i = 0; i < result; ++i) {
      const io_event& event = events_[static_cast<std::size_t>(i)];
      if (event.obj == &wake_entry_) {
        std::uint64_t value = 0;
        while (::read(wake_descriptor_, &value, sizeof value) > 0) continue;
        const int armed = arm_wake();
        ZINF_CHECK(armed >= 0, "re-arming the wake-up: " + errno_text(-armed));
        continue;
      }
      out[count++] = {reinterpret_cast<std::uint64_t>(event.data),
                      static_cast<std::int64_t>(event.res)};
      free_.push_back(event.obj);
      --in_flight_;
    }
    return count;
  }

  int in_flight() const override { return in_flight_; }

  void wake() override {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake_descriptor_, &one, sizeof one);
  }

 private:
  int arm_wake() {
    io_prep_poll(&wake_entry_, wake_descriptor_, POLLIN);
    iocb* entry = &wake_entry_;
    const int result = io_submit(context_, 1, &entry);
    return result == 0 ? -EAGAIN : result;
  }

  static void prepare(iocb* entry, const IoBlock& block) {
    const auto offset = static_cast<long long>(block.offset);
    if (block.op == IoOp::kRead) {
      io_prep_pread(entry, block.file, block.memory, block.bytes, offset);
    } else if (block.op == IoOp::kWrite) {
      io_prep_pwrite(entry, block.file, block.memory, block.bytes, offset);
    } else {
      io_prep_fdsync(entry, block.file);
    }
    entry->data = reinterpret_cast<void*>(block.tag);
  }

  io_context_t context_ = nullptr;
  std::vector<iocb> entries_;
  std::vector<iocb*> free_;
  std::vector<iocb*> spare_;
  std::vector<io_event> events_;
  std::deque<IoCompletion> refused_;
  iocb wake_entry_{};
  int depth_ = 0;
  int in_flight_ = 0;
  int wake_descriptor_ = -1;
};

}  // namespace

std::unique_ptr<IoEngine> make_libaio_engine(int depth, std::string& why) {
  auto engine = std::make_unique<LibaioEngine>();
  why = engine->open(depth);
  if (!why.empty()) return nullptr;
  return engine;
}

}  // namespace zinf::nvme
