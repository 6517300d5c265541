#include "engine/step/state_access.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cpu_optim/convert.h"
#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "engine/base/str.h"
#include "engine/plan/compile.h"

namespace zinf::step {

namespace {

// Runs one asynchronous transfer to its end.
void wait_for(const std::function<void(nvme::IoCallback)>& start) {
  std::mutex mutex;
  std::condition_variable done;
  bool finished = false;
  nvme::IoResult result;
  start([&](const nvme::IoResult& given) {
    const std::lock_guard lock(mutex);
    result = given;
    finished = true;
    done.notify_one();
  });
  std::unique_lock lock(mutex);
  done.wait(lock, [&] { return finished; });
  result.throw_if_failed();
}

}  // namespace

StateAccess::StateAccess(const plan::ProgramSet& programs, const plan::CompileInput& input,
                         const optim::Format& format, swap::Tiers& tiers)
    : input_(input), format_(format), tiers_(tiers) {
  std::map<std::string, std::byte*> resident;
  for (const plan::Buffer& buffer : programs.buffers) {
    if (!buffer.resident) continue;
    std::byte* arena =
        buffer.arena == plan::Arena::kDevice ? tiers.device_arena() : tiers.host_arena();
    resident[buffer.name] = arena + buffer.offset;
  }
  Bytes largest = plan::kPage;
  for (std::size_t piece = 0; piece < input.model->pieces.size(); ++piece) {
    std::vector<Place> states;
    const std::size_t count = input.model->pieces[piece].trainable ? input.states.size() : 1;
    for (std::size_t state = 0; state < count; ++state) {
      Place found;
      const auto memory =
          resident.find(str(input.model->pieces[piece].name, " ", input.states[state].name));
      if (memory != resident.end()) found.memory = memory->second;
      for (std::size_t e = 0; e < programs.extents.size(); ++e) {
        const plan::Extent& extent = programs.extents[e];
        if (extent.kind == plan::ExtentKind::kState && extent.piece == static_cast<int>(piece) &&
            extent.state == static_cast<int>(state)) {
          found.extent = static_cast<int>(e);
        }
      }
      ZINF_CHECK(found.extent >= 0, str("state of ", input.model->pieces[piece].name));
      states.push_back(found);
      largest = std::max(largest, round_up(input.states[state].bytes(kElements), plan::kPage));
    }
    places_.push_back(std::move(states));
  }
  buffer_bytes_ = largest;
  scratch_ = gpu::HostMemory(largest * kBuffers, "state access");
}

void StateAccess::read(int piece, int state, int slot, std::int64_t first, std::int64_t count,
                       std::byte* to) {
  const Place& at = places_[piece][state];
  const plan::StateLayout& layout = input_.states[state];
  if (at.memory != nullptr) {
    std::memcpy(to, at.memory + layout.bytes(first), layout.bytes(count));
    return;
  }
  wait_for([&](nvme::IoCallback done) {
    tiers_.read(at.extent, slot, layout.bytes(first), scratch_.data(),
                round_up(layout.bytes(count), plan::kPage), std::move(done));
  });
  std::memcpy(to, scratch_.data(), layout.bytes(count));
}

void StateAccess::write(int piece, int state, int slot, std::int64_t first, std::int64_t count,
                        const std::byte* from) {
  const Place& at = places_[piece][state];
  const plan::StateLayout& layout = input_.states[state];
  if (at.memory != nullptr) {
    std::memcpy(at.memory + layout.bytes(first), from, layout.bytes(count));
    return;
  }
  const Bytes bytes = round_up(layout.bytes(count), plan::kPage);
  std::memcpy(scratch_.data(), from, layout.bytes(count));
  std::memset(scratch_.data() + layout.bytes(count), 0, bytes - layout.bytes(count));
  wait_for([&](nvme::IoCallback done) {
    tiers_.write(at.extent, slot, layout.bytes(first), scratch_.data(), bytes, std::move(done));
  });
}

void StateAccess::store_master(int piece, int slot, std::int64_t first, std::int64_t count,
                               const float* master) {
  const auto* bytes = reinterpret_cast<const std::byte*>(master);
  if (format_.weight == optim::WeightDtype::kFp32) {
    write(piece, 0, slot, first, count, bytes);
    return;
  }
  std::vector<std::uint16_t> weight(static_cast<std::size_t>(count));
  std::vector<std::int16_t> remainder(static_cast<std::size_t>(count));
  if (format_.weight == optim::WeightDtype::kFp16) {
    optim::fp32_to_fp16(master, weight.data(), count);
  } else {
    optim::split_master(master, weight.data(), remainder.data(), count);
  }
  write(piece, 0, slot, first, count, reinterpret_cast<const std::byte*>(weight.data()));
  if (!input_.model->pieces[piece].trainable) return;
  if (format_.master == optim::MasterWeights::kSplit) {
    write(piece, 1, slot, first, count, reinterpret_cast<const std::byte*>(remainder.data()));
  } else if (format_.master == optim::MasterWeights::kFp32) {
    write(piece, 1, slot, first, count, bytes);
  }
}

void StateAccess::read_master(int piece, int slot, std::int64_t first, std::int64_t count,
                              float* master) {
  auto* bytes = reinterpret_cast<std::byte*>(master);
  if (format_.weight == optim::WeightDtype::kFp32) {
    read(piece, 0, slot, first, count, bytes);
    return;
  }
  const bool trainable = input_.model->pieces[piece].trainable;
  if (trainable && format_.master == optim::MasterWeights::kFp32) {
    read(piece, 1, slot, first, count, bytes);
    return;
  }
  std::vector<std::uint16_t> weight(static_cast<std::size_t>(count));
  read(piece, 0, slot, first, count, reinterpret_cast<std::byte*>(weight.data()));
  if (!trainable || format_.master != optim::MasterWeights::kSplit) {
    const auto widen =
        format_.weight == optim::WeightDtype::kFp16 ? optim::fp16_to_fp32 : optim::bf16_to_fp32;
    widen(weight.data(), master, count, optim::best_isa());
    return;
  }
  std::vector<std::int16_t> remainder(static_cast<std::size_t>(count));
  read(piece, 1, slot, first, count, reinterpret_cast<std::byte*>(remainder.data()));
  optim::join_master(weight.data(), remainder.data(), master, count);
}

void StateAccess::for_each_resident(
    bool moments_are_zero,
    const std::function<void(int, int, std::int64_t, std::int64_t)>& visit) const {
  for (std::size_t p = 0; p < places_.size(); ++p) {
    const std::int64_t elements = input_.model->pieces[p].elements;
    for (std::size_t s = 0; s < places_[p].size(); ++s) {
      if (places_[p][s].memory == nullptr || (moments_are_zero && input_.states[s].starts_zero))
        continue;
      for (std::int64_t first = 0; first < elements; first += kElements) {
        visit(static_cast<int>(p), static_cast<int>(s), first,
              std::min(kElements, elements - first));
      }
    }
  }
}

namespace {

// A few transfers in flight, each with a buffer of its own. Used by one thread; callbacks come from
// any.
class Window {
 public:
  explicit Window(int buffers) : busy_(static_cast<std::size_t>(buffers), 0) {}
  ~Window() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return all_free(); });
  }

  // Waits until the buffer is free; throws what its transfer, or any before, failed with.
  void await(std::size_t buffer) {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return !busy_[buffer]; });
    if (failure_) throw failure_->to_error();
  }
  nvme::IoCallback begin(std::size_t buffer) {
    const std::lock_guard lock(mutex_);
    busy_[buffer] = 1;
    return [this, buffer](const nvme::IoResult& result) {
      const std::lock_guard guard(mutex_);
      busy_[buffer] = 0;
      if (!result.ok() && !failure_) failure_ = result.failure;
      ended_.notify_all();
    };
  }

 private:
  bool all_free() const {
    return std::all_of(busy_.begin(), busy_.end(), [](char busy) { return busy == 0; });
  }
  std::mutex mutex_;
  std::condition_variable ended_;
  std::vector<char> busy_;
  std::shared_ptr<const nvme::IoFailure> failure_;
};

}  // namespace

void StateAccess::transfer(int slot, bool moments_are_zero, bool out) {
  Window window(kBuffers);
  // What the latest read of each buffer is for.
  struct Landing {
    std::byte* to = nullptr;
    Bytes bytes = 0;
  };
  std::array<Landing, kBuffers> landings{};
  std::size_t next = 0;
  const auto free_buffer = [&](std::size_t buffer) {
    window.await(buffer);
    Landing& landing = landings[buffer];
    if (landing.to != nullptr)
      std::memcpy(landing.to, scratch_.data() + buffer * buffer_bytes_, landing.bytes);
    landing.to = nullptr;
  };
  for_each_resident(
      moments_are_zero, [&](int piece, int state, std::int64_t first, std::int64_t count) {
        const std::size_t buffer = next++ % kBuffers;
        free_buffer(buffer);
        std::byte* data = scratch_.data() + buffer * buffer_bytes_;
        const Place& at = places_[piece][state];
        const plan::StateLayout& layout = input_.states[state];
        const Bytes used = layout.bytes(count);
        const Bytes bytes = round_up(used, plan::kPage);
        if (out) {
          std::memcpy(data, at.memory + layout.bytes(first), used);
          std::memset(data + used, 0, bytes - used);
          tiers_.write(at.extent, slot, layout.bytes(first), data, bytes, window.begin(buffer));
        } else {
          landings[buffer] = {at.memory + layout.bytes(first), used};
          tiers_.read(at.extent, slot, layout.bytes(first), data, bytes, window.begin(buffer));
        }
      });
  for (std::size_t buffer = 0; buffer < kBuffers; ++buffer) free_buffer(buffer);
}

void StateAccess::write_through(int slot, bool moments_are_zero) {
  transfer(slot, moments_are_zero, true);
}

void StateAccess::restore(int slot, bool moments_are_zero) {
  transfer(slot, moments_are_zero, false);
}

StateAccess::Hashes StateAccess::hashes(std::int64_t version, int slot, bool moments_are_zero,
                                        const std::function<bool()>& go_on) {
  Hasher weights, state;
  state.update(&version, sizeof version);
  std::vector<float> master(static_cast<std::size_t>(kElements));
  Bytes widest = 0;
  for (const plan::StateLayout& layout : input_.states)
    widest = std::max(widest, layout.bytes(kElements));
  std::vector<std::byte> bytes(widest);
  for (std::size_t p = 0; p < input_.model->pieces.size(); ++p) {
    const model::PieceSpec& piece = input_.model->pieces[p];
    const int index = static_cast<int>(p);
    for (std::int64_t first = 0; first < piece.elements; first += kElements) {
      if (go_on && !go_on()) return {};
      const std::int64_t count = std::min(kElements, piece.elements - first);
      read(index, 0, slot, first, count, bytes.data());
      weights.update(bytes.data(), input_.states[0].bytes(count));
      read_master(index, slot, first, count, master.data());
      state.update(master.data(), static_cast<std::size_t>(count) * sizeof(float));
      for (std::size_t s = 1; s < places_[p].size(); ++s) {
        if (!input_.states[s].starts_zero) continue;  // master or remainder: hashed as the master
        if (moments_are_zero) {
          std::memset(bytes.data(), 0, input_.states[s].bytes(count));
        } else {
          read(index, static_cast<int>(s), slot, first, count, bytes.data());
        }
        state.update(bytes.data(), input_.states[s].bytes(count));
      }
    }
  }
  return {weights.hex(), state.hex()};
}

}  // namespace zinf::step
