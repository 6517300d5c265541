// What a lane's thread shares with everybody else: requests coming in, files, counters, the wish to
// stop.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "nvme/block_queue.h"
#include "nvme/io_engine.h"
#include "nvme/io_lane.h"

namespace zinf::nvme {

class LaneInbox {
 public:
  // Any thread.
  FileId add_file(LaneFile file);
  void add_memory(std::span<std::byte> memory);
  void push(IoOp op, IoRequest request);
  void stop();
  LaneCounters counters() const;

  // The lane's thread.
  struct News {
    std::deque<TransferRef> transfers;
    std::vector<std::shared_ptr<const LaneFile>> files;  // those added since the last call
    std::vector<std::span<std::byte>> memory;            // likewise
    bool stopping = false;
  };
  News take();
  // Waits for news, at most so long (negative: no limit).
  void wait(double seconds);
  bool quiet() const;  // no request is waiting to be taken
  // From now until close_door(), push() wakes the engine, in which the lane is about to wait.
  // False: there is news already, so do not wait.
  bool open_door(IoEngine* engine);
  void close_door();
  void publish(const LaneCounters& counters);

 private:
  bool has_news() const { return stopping_ != stop_taken_ || !incoming_.empty(); }

  mutable std::mutex mutex_;
  std::condition_variable news_cv_;
  std::deque<TransferRef> incoming_;
  std::vector<std::shared_ptr<const LaneFile>> files_;
  std::size_t files_taken_ = 0;
  std::vector<std::span<std::byte>> memory_;  // not yet taken
  IoEngine* door_ = nullptr;
  bool stopping_ = false;
  bool stop_taken_ = false;
  LaneCounters counters_;
};

}  // namespace zinf::nvme
