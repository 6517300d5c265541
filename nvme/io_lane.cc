#include "nvme/io_lane.h"

#include <pthread.h>
#include <signal.h>

#include <future>
#include <thread>
#include <utility>

#include "engine/base/error.h"
#include "nvme/lane_inbox.h"
#include "nvme/lane_worker.h"

namespace zinf::nvme {

struct IoLane::Impl {
  explicit Impl(LaneOptions given) : options(std::move(given)) {}
  const LaneOptions options;
  LaneInbox inbox;
  std::thread thread;
};

IoLane::IoLane(LaneOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {
  ZINF_CHECK(impl_->options.block_size >= 4096 && impl_->options.block_size <= kGiB, "block size");
  std::promise<std::string> started;
  std::future<std::string> name = started.get_future();
  // The lane's thread takes no signals: those belong to the main thread.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  impl_->thread =
      std::thread([this, &started] { run_lane(impl_->options, impl_->inbox, started); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  try {
    engine_name_ = name.get();
  } catch (...) {
    impl_->thread.join();
    throw;
  }
}

IoLane::~IoLane() {
  impl_->inbox.stop();
  impl_->thread.join();
}

FileId IoLane::add_file(LaneFile file) { return impl_->inbox.add_file(std::move(file)); }

void IoLane::add_memory(std::span<std::byte> memory) { impl_->inbox.add_memory(memory); }

void IoLane::submit(IoRequest request) {
  const IoOp op = request.is_write ? IoOp::kWrite : IoOp::kRead;
  impl_->inbox.push(op, std::move(request));
}

void IoLane::sync(FileId file, IoCallback on_done) {
  IoRequest request;
  request.file = file;
  request.on_done = std::move(on_done);
  impl_->inbox.push(IoOp::kSync, std::move(request));
}

LaneCounters IoLane::counters() const { return impl_->inbox.counters(); }

}  // namespace zinf::nvme
