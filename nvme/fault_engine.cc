#include "nvme/fault_engine.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/random.h"

namespace zinf::nvme {

namespace {

constexpr Bytes kSector = 4096;
constexpr double kPatience =
    0.00002;  // how long to wait for the inner engine while completions are held back

enum Purpose : std::uint64_t { kKind = 1, kLength, kHold, kBit, kWhichError };

}  // namespace

class FaultEngine final : public IoEngine {
 public:
  FaultEngine(std::shared_ptr<FaultControl> control, std::unique_ptr<IoEngine> inner,
              std::uint64_t number)
      : control_(std::move(control)),
        inner_(std::move(inner)),
        key_(random_key(control_->options().seed, number)) {}

  std::string_view name() const override { return inner_->name(); }
  EngineLimits limits() const override { return inner_->limits(); }

  int add_file(int descriptor) override {
    const int file = inner_->add_file(descriptor);
    files_[file] = {
        descriptor,
        std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", descriptor)).string()};
    return file;
  }

  Bytes add_memory(std::span<std::byte> memory) override { return inner_->add_memory(memory); }

  std::size_t submit(std::span<const IoBlock> blocks) override {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (!take(blocks[i])) return i;
    }
    return blocks.size();
  }

  std::size_t reap(std::span<IoCompletion> out, double timeout_seconds) override {
    if (!held_.empty() && (timeout_seconds < 0 || timeout_seconds > kPatience))
      timeout_seconds = kPatience;
    inner_done_.resize(out.size());
    const std::size_t count = inner_->reap(inner_done_, timeout_seconds);
    for (std::size_t i = 0; i < count; ++i) hold(finish(inner_done_[i]));
    std::size_t given = 0;
    for (auto held = held_.begin(); held != held_.end();) {
      if (held->turns-- > 0 || given == out.size()) {
        ++held;
      } else {
        out[given++] = held->completion;
        held = held_.erase(held);
      }
    }
    return given;
  }

  int in_flight() const override { return inner_->in_flight(); }

  void wake() override { inner_->wake(); }

 private:
  struct File {
    int descriptor = -1;
    std::string path;
  };
  struct Pending {
    IoBlock block;
    std::int64_t extra = 0;  // bytes claimed beyond those moved
    bool flip = false;
    std::uint64_t number = 0;
    std::uint64_t write = 0;
    std::vector<std::uint64_t> synced;
  };
  struct Held {
    IoCompletion completion;
    int turns = 0;
  };

  double uniform(Purpose purpose, std::uint64_t number) const {
    return random_uniform(key_ ^ purpose, number);
  }

  // Answers the block itself, without the inner engine.
  bool answer(const IoBlock& block, std::int64_t result) {
    control_->count_fault();
    hold({block.tag, result});
    return true;
  }

  bool take(const IoBlock& block) {
    const FaultOptions& faults = control_->options();
    if (control_->crashed()) return answer(block, -EIO);
    const std::uint64_t global = control_->next_block();
    const std::uint64_t number = ++taken_;
    if (global == faults.crash_block) {
      control_->crash();
      return answer(block, -EIO);
    }
    if (global == faults.fail_block) return answer(block, -faults.error_number);
    // One draw decides which fault, if any: shares add up.
    double draw = uniform(kKind, number);
    const auto falls = [&draw](double share) { return (draw -= share) < 0; };
    if (falls(faults.error_share)) return answer(block, -faults.error_number);
    if (falls(faults.again_share))
      return answer(block, uniform(kWhichError, number) < 0.5 ? -EAGAIN : -EINTR);
    if (falls(faults.drop_share)) {
      control_->count_fault();
      return true;
    }
    const bool write = block.op == IoOp::kWrite, read = block.op == IoOp::kRead;
    if (falls(faults.lose_share) && write)
      return answer(block, static_cast<std::int64_t>(block.bytes));
    Pending pending{block, 0, false, number, 0, {}};
    if (falls(faults.short_share) && block.op != IoOp::kSync) {
      if (!shorten(pending)) return true;
    } else if (falls(faults.flip_share) && read) {
      pending.flip = true;
    }
    return pass_on(std::move(pending));
  }

  // False: nothing is moved at all and the completion is on its way.
  bool shorten(Pending& pending) {
    control_->count_fault();
    const Bytes sectors = pending.block.bytes / kSector;
    const auto moved =
        static_cast<Bytes>(uniform(kLength, pending.number) * static_cast<double>(sectors)) *
        kSector;
    const auto extra =
        static_cast<std::int64_t>(uniform(kBit, pending.number) * kSector) & ~std::int64_t{63};
    if (moved == 0) {
      // A read of 0 bytes would be the end of the file.
      hold({pending.block.tag,
            std::max<std::int64_t>(extra, pending.block.op == IoOp::kRead ? 64 : 0)});
      return false;
    }
    pending.block.bytes = moved;
    pending.extra = extra;
    return true;
  }

  bool pass_on(Pending pending) {
    const File& file = files_.at(pending.block.file);
    if (control_->options().track_unsynced) {
      if (pending.block.op == IoOp::kWrite)
        pending.write = control_->note_write(before_image(file, pending.block));
      if (pending.block.op == IoOp::kSync) pending.synced = control_->completed_writes(file.path);
    }
    if (inner_->submit({&pending.block, 1}) == 0) {
      if (pending.write) control_->forget_writes({pending.write});
      --taken_;
      return false;
    }
    pending_[pending.block.tag] = std::move(pending);
    return true;
  }

  FaultControl::Write before_image(const File& file, const IoBlock& block) const {
    FaultControl::Write write{file.path, block.offset, std::vector<std::byte>(block.bytes), false};
    const std::unique_ptr<void, decltype(&std::free)> memory(
        std::aligned_alloc(kSector, round_up(block.bytes, kSector)), &std::free);
    const ssize_t got =
        ::pread(file.descriptor, memory.get(), block.bytes, static_cast<off_t>(block.offset));
    if (got > 0) std::memcpy(write.before.data(), memory.get(), static_cast<std::size_t>(got));
    return write;
  }

  IoCompletion finish(const IoCompletion& completion) {
    const Pending pending = std::move(pending_.at(completion.tag));
    pending_.erase(completion.tag);
    std::int64_t result = completion.result;
    if (result < 0) return {completion.tag, result};
    if (pending.write) control_->complete_write(pending.write);
    control_->forget_writes(pending.synced);
    if (pending.flip && result > 0) {
      control_->count_fault();
      const auto bit =
          random_below(key_ ^ kBit, pending.number, static_cast<std::uint64_t>(result) * 8);
      pending.block.memory[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    }
    return {completion.tag, result + pending.extra};
  }

  void hold(const IoCompletion& completion) {
    const std::uint64_t number = ++completed_;
    const bool delay = uniform(kHold, 2 * number) < control_->options().delay_share;
    if (delay) control_->count_fault();
    held_.push_back(
        {completion, delay ? 1 + static_cast<int>(uniform(kHold, 2 * number + 1) * 8) : 0});
  }

  const std::shared_ptr<FaultControl> control_;  // shared: the control must outlive every engine
  const std::unique_ptr<IoEngine> inner_;
  const std::uint64_t key_;
  std::map<int, File> files_;
  std::map<std::uint64_t, Pending> pending_;  // by tag
  std::vector<Held> held_;
  std::vector<IoCompletion> inner_done_;
  std::uint64_t taken_ = 0;
  std::uint64_t completed_ = 0;
};

EngineWrapper FaultControl::wrapper() {
  return [self = shared_from_this()](std::unique_ptr<IoEngine> inner) -> std::unique_ptr<IoEngine> {
    std::uint64_t number = 0;
    {
      const std::lock_guard lock(self->mutex_);
      number = ++self->engines_;
    }
    return std::make_unique<FaultEngine>(self, std::move(inner), number);
  };
}

void FaultControl::crash() {
  const std::lock_guard lock(mutex_);
  crashed_ = true;
}

std::size_t FaultControl::forget_unsynced() {
  const std::lock_guard lock(mutex_);
  // Of each sector the states that it had before each of its writes.
  std::map<std::pair<std::string, std::uint64_t>, std::vector<const std::byte*>> states;
  for (const auto& [id, write] : writes_) {
    for (std::size_t at = 0; at + kSector <= write.before.size(); at += kSector) {
      states[{write.path, write.offset + at}].push_back(write.before.data() + at);
    }
  }
  std::size_t forgotten = 0, index = 0;
  for (const auto& [where, before] : states) {
    const auto kept =
        random_below(random_key(options_.seed, 0xF0, blocks_), index++, before.size() + 1);
    if (kept == before.size()) continue;
    const int file = ::open(where.first.c_str(), O_WRONLY | O_CLOEXEC);
    if (file < 0) continue;
    const ssize_t written = ::pwrite(file, before[kept], kSector, static_cast<off_t>(where.second));
    ZINF_CHECK(written == static_cast<ssize_t>(kSector), "putting a sector back in " + where.first);
    ::close(file);
    ++forgotten;
  }
  writes_.clear();
  crashed_ = false;
  return forgotten;
}

std::uint64_t FaultControl::blocks() const {
  const std::lock_guard lock(mutex_);
  return blocks_;
}

std::uint64_t FaultControl::injected() const {
  const std::lock_guard lock(mutex_);
  return injected_;
}

std::uint64_t FaultControl::next_block() {
  const std::lock_guard lock(mutex_);
  return ++blocks_;
}

bool FaultControl::crashed() const {
  const std::lock_guard lock(mutex_);
  return crashed_;
}

void FaultControl::count_fault() {
  const std::lock_guard lock(mutex_);
  ++injected_;
}

std::uint64_t FaultControl::note_write(Write write) {
  const std::lock_guard lock(mutex_);
  writes_.emplace(++next_write_, std::move(write));
  return next_write_;
}

void FaultControl::complete_write(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  if (const auto found = writes_.find(id); found != writes_.end()) found->second.completed = true;
}

std::vector<std::uint64_t> FaultControl::completed_writes(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> ids;
  for (const auto& [id, write] : writes_) {
    if (write.completed && write.path == path) ids.push_back(id);
  }
  return ids;
}

void FaultControl::forget_writes(const std::vector<std::uint64_t>& ids) {
  const std::lock_guard lock(mutex_);
  for (const std::uint64_t id : ids) writes_.erase(id);
}

}  // namespace zinf::nvme
