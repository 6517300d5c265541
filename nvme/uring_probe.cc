#include "nvme/uring_probe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "nvme/device_info.h"
#include "nvme/errno_text.h"

namespace zinf::nvme {

namespace {

constexpr std::size_t kBlock = 4096;

struct Ring {
  explicit Ring(unsigned flags) {
    io_uring_params params{};
    params.flags = flags;
    if (flags & IORING_SETUP_SQPOLL) params.sq_thread_idle = 1;
    error = -io_uring_queue_init_params(8, &ring, &params);
  }
  ~Ring() {
    if (error == 0) io_uring_queue_exit(&ring);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  std::string refusal() const { return error == 0 ? "" : errno_text(error); }

  io_uring ring{};
  int error = 0;
};

std::string refusal_of(int result) { return result < 0 ? errno_text(-result) : ""; }

struct Buffer {
  explicit Buffer(std::size_t bytes) : memory(std::aligned_alloc(kBlock, bytes), &std::free) {}
  std::unique_ptr<void, decltype(&std::free)> memory;
};

std::string registered_buffer_refusal(Ring& ring, std::size_t bytes) {
  const Buffer buffer(bytes);
  const iovec range{buffer.memory.get(), bytes};
  return refusal_of(io_uring_register_buffers(&ring.ring, &range, 1));
}

// Reads a block of a file that is gone already, with completions found by polling the drive.
std::string try_polled_read(const std::string& directory) {
  const std::string name = fmt::format("{}/.zinf-poll-{}", directory, ::getpid());
  const int file = ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_DIRECT, 0600);
  const int open_error = errno;
  ::unlink(name.c_str());
  if (file < 0) return errno_text(open_error);
  const Buffer block(kBlock);
  std::fill_n(static_cast<char*>(block.memory.get()), kBlock, '\x5a');
  std::string refusal;
  if (::pwrite(file, block.memory.get(), kBlock, 0) != static_cast<ssize_t>(kBlock)) {
    refusal = errno_text(errno);
  } else if (Ring ring(IORING_SETUP_IOPOLL); ring.error != 0) {
    refusal = ring.refusal();
  } else {
    io_uring_prep_read(io_uring_get_sqe(&ring.ring), file, block.memory.get(), kBlock, 0);
    io_uring_cqe* done = nullptr;
    int result = io_uring_submit_and_wait(&ring.ring, 1);
    if (result >= 0) result = io_uring_peek_cqe(&ring.ring, &done);
    refusal = refusal_of(result < 0 ? result : done->res);
  }
  ::close(file);
  return refusal;
}

}  // namespace

std::vector<UringFeature> uring_features() {
  Ring plain(0);
  if (plain.error != 0) return {};
  const int no_files[] = {-1};
  return {{"deferred task work",
           Ring(IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN).refusal()},
          {"registered files", refusal_of(io_uring_register_files(&plain.ring, no_files, 1))},
          {"registered buffers", registered_buffer_refusal(plain, kBlock)},
          {"SQPOLL", Ring(IORING_SETUP_SQPOLL).refusal()}};
}

std::string registration_refusal(Bytes bytes) {
  Ring ring(0);
  return ring.error == 0 ? registered_buffer_refusal(ring, bytes) : "";
}

std::string polling_refusal(const std::string& directory, const std::string& sysfs) {
  const std::string device = device_of(directory, sysfs).name;
  if (device.empty()) return "no block device";
  int polls = 0;
  std::ifstream(fmt::format("{}/block/{}/queue/io_poll", sysfs, device)) >> polls;
  // Without queues to poll some kernels refuse, others wait for an interrupt and call it polled.
  if (polls != 1) return fmt::format("{} has no queues to poll (nvme.poll_queues)", device);
  return try_polled_read(directory);
}

}  // namespace zinf::nvme
