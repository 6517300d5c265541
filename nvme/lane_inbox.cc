#include "nvme/lane_inbox.h"

#include <chrono>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/str.h"

namespace zinf::nvme {

namespace {

void check_aligned(const LaneFile& file, const IoRequest& request) {
  const Bytes mask = file.alignment - 1;
  const auto address = reinterpret_cast<std::uintptr_t>(request.memory);
  ZINF_CHECK(((request.offset | request.bytes | address) & mask) == 0,
             str("offset ", request.offset, ", bytes ", request.bytes, ", memory ", request.memory,
                 ", alignment ", file.alignment, ", file ", file.path));
}

}  // namespace

FileId LaneInbox::add_file(LaneFile file) {
  ZINF_CHECK(
      file.descriptor >= 0 && file.alignment > 0 && (file.alignment & (file.alignment - 1)) == 0,
      file.path);
  const std::lock_guard lock(mutex_);
  files_.push_back(std::make_shared<const LaneFile>(std::move(file)));
  return static_cast<FileId>(files_.size() - 1);
}

void LaneInbox::add_memory(std::span<std::byte> memory) {
  const std::lock_guard lock(mutex_);
  memory_.push_back(memory);
}

void LaneInbox::push(IoOp op, IoRequest request) {
  auto transfer = std::make_shared<Transfer>();
  transfer->op = op;
  transfer->request = std::move(request);
  const std::lock_guard lock(mutex_);
  const FileId file = transfer->request.file;
  ZINF_CHECK(file >= 0 && static_cast<std::size_t>(file) < files_.size(), "unknown file of a lane");
  check_aligned(*files_[static_cast<std::size_t>(file)], transfer->request);
  incoming_.push_back(std::move(transfer));
  news_cv_.notify_one();
  // Under the lock: the engine can't go away while its door is open.
  if (door_) std::exchange(door_, nullptr)->wake();
}

void LaneInbox::stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  news_cv_.notify_one();
  if (door_) std::exchange(door_, nullptr)->wake();
}

LaneCounters LaneInbox::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

LaneInbox::News LaneInbox::take() {
  const std::lock_guard lock(mutex_);
  News news;
  news.transfers = std::move(incoming_);
  incoming_.clear();
  for (; files_taken_ < files_.size(); ++files_taken_) news.files.push_back(files_[files_taken_]);
  news.memory = std::exchange(memory_, {});
  news.stopping = stop_taken_ = stopping_;
  return news;
}

void LaneInbox::wait(double seconds) {
  std::unique_lock lock(mutex_);
  if (seconds < 0) {
    news_cv_.wait(lock, [this] { return has_news(); });
  } else {
    news_cv_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return has_news(); });
  }
}

bool LaneInbox::quiet() const {
  const std::lock_guard lock(mutex_);
  return incoming_.empty();
}

bool LaneInbox::open_door(IoEngine* engine) {
  const std::lock_guard lock(mutex_);
  if (!incoming_.empty()) return false;
  door_ = engine;
  return true;
}

void LaneInbox::close_door() {
  const std::lock_guard lock(mutex_);
  door_ = nullptr;
}

void LaneInbox::publish(const LaneCounters& counters) {
  const std::lock_guard lock(mutex_);
  counters_ = counters;
}

}  // namespace zinf::nvme
