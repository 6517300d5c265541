#include "cpu_optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "cpu_optim/float_mode.h"
#include "cpu_optim/kernel_table.h"
#include "engine/base/error.h"
#include "engine/base/random.h"
#include "engine/base/str.h"

namespace zinf::optim {

namespace {

Family family_of(const Format& format) {
  switch (format.algorithm) {
    case Algorithm::kAdamW:
    case Algorithm::kAdam:
      return kFamilyAdam;
    case Algorithm::kLion:
      return kFamilyLion;
    case Algorithm::kAdagrad:
      return kFamilyAdagrad;
    case Algorithm::kSgd:
      return format.has_momentum ? kFamilySgdMomentum : kFamilySgd;
  }
  return kFamilyAdam;
}

WeightIo weight_io_of(const Format& format) {
  if (format.weight == WeightDtype::kFp32) return kWeightFp32;
  if (format.weight == WeightDtype::kFp16) return kWeightFp16Master;
  if (format.master == MasterWeights::kSplit) return kWeightSplit;
  return format.master == MasterWeights::kFp32 ? kWeightBf16Master : kWeightBf16Sr;
}

bool is_decoupled(Algorithm algorithm) {
  return algorithm == Algorithm::kAdamW || algorithm == Algorithm::kLion;
}

// Where the configured eps is less: what is added to any root of a number above zero without
// changing it.
constexpr float kSmallestEps = std::numeric_limits<float>::min();

Coefficients coefficients(Algorithm algorithm, const Hyper& hyper, const Group& group,
                          const StepScalars& scalars) {
  const double lr = scalars.lr * group.lr_factor;
  const double step = static_cast<double>(scalars.step);
  double step_size = lr, eps = hyper.eps, decay = group.weight_decay;
  if (algorithm == Algorithm::kAdamW || algorithm == Algorithm::kAdam) {
    if (hyper.bias_correction) {
      const double root = std::sqrt(1.0 - std::pow(hyper.beta2, step));
      const double correction = (1.0 - std::pow(hyper.beta1, step)) / root;
      step_size = lr / correction;
      decay *= correction;
      eps = hyper.eps * root;
    }
  } else if (algorithm == Algorithm::kAdagrad) {
    step_size = lr / (1.0 + (step - 1.0) * hyper.lr_decay);
  }
  const bool decoupled = is_decoupled(algorithm);
  Coefficients c{};
  c.gradient_factor = static_cast<float>(scalars.gradient_factor);
  c.l2 = static_cast<float>(decoupled ? 0.0 : group.weight_decay);
  c.decay = static_cast<float>(decoupled ? decay : 0.0);
  c.first = static_cast<float>(1.0 - hyper.beta1);
  c.second = static_cast<float>(1.0 - hyper.beta2);
  c.eps = std::max(static_cast<float>(eps), kSmallestEps);
  c.step_size = static_cast<float>(step_size);
  c.initial = static_cast<float>(hyper.initial_accumulator);
  c.momentum = static_cast<float>(hyper.momentum);
  c.undamped = static_cast<float>(scalars.step == 1 ? 1.0 : 1.0 - hyper.dampening);
  c.of_buffer = static_cast<float>(hyper.nesterov ? hyper.momentum : 1.0);
  c.of_gradient = hyper.nesterov ? 1.0f : 0.0f;
  return c;
}

// One state of the range, with its element 0.
struct StateBytes {
  std::byte* data = nullptr;
  Bytes quantum_bytes = 0;
  bool is_moment = false;

  std::byte* at(std::int64_t element) const {
    return data + static_cast<Bytes>(element) * quantum_bytes / kQuantum;
  }
  Bytes bytes(std::int64_t elements) const {
    return static_cast<Bytes>(elements) * quantum_bytes / kQuantum;
  }
};

static_assert(static_cast<int>(StateDtype::kFp32) == kMomentFp32 &&
              static_cast<int>(StateDtype::kBf16) == kMomentBf16 &&
              static_cast<int>(StateDtype::kInt8) == kMomentInt8);

// What is summed, updated and summed again at a time: so little that the processor goes on fetching
// what comes next in the meantime.
constexpr std::int64_t kSummedElements = 2 * kQuantum;

// Walks one thread's range: in tiles, cut where the group changes; partial quanta go through a
// padded copy, so that the kernels see whole vectors and an element's random bits depend on its
// place in the piece alone.
class RangeUpdate {
 public:
  RangeUpdate(const KernelTable& table, const Format& format, const StateView& view,
              Gradient gradient, std::int64_t first_element, std::span<const GroupRange> ranges,
              const std::vector<Coefficients>& groups, const StepScalars& scalars,
              std::int64_t elements, UpdatePages* pages)
      : kernel_(table.update[family_of(format)][weight_io_of(format)]
                            [static_cast<int>(format.moments)]),
        widen_(table.bf16_to_fp32),
        gradient_(gradient),
        first_element_(first_element),
        ranges_(ranges),
        groups_(groups),
        key_(random_key(scalars.seed, static_cast<std::uint64_t>(scalars.step))),
        zero_moments_(scalars.moments_are_zero),
        elements_(elements),
        pages_(pages) {
    const std::vector<StateSpec> specs = schema(format);
    for (std::size_t s = 0; s < specs.size(); ++s) {
      ZINF_CHECK(view.state[s] != nullptr, str("state ", specs[s].name, " has no memory"));
      states_[s] = {static_cast<std::byte*>(view.state[s]), specs[s].quantum_bytes,
                    specs[s].is_moment};
      std::size_t& slot = specs[s].name == "weight"                                 ? weight_
                          : !specs[s].is_moment                                     ? master_
                          : specs[s].name == "exp_avg_sq" || specs[s].name == "sum" ? second_
                                                                                    : first_;
      slot = s;
    }
    count_ = specs.size();
  }

  // The elements between two places that are page borders in every state whose pages are summed in
  // the one pass; kTile where there is none. Other states' pages are summed in passes of their own:
  // of ranges that begin within a page, and of all where there would be less than one such stretch
  // for each thread.
  std::int64_t plan_streams(int threads) {
    std::int64_t unit = kTile;
    if (pages_ == nullptr) return unit;
    for (std::size_t s = 0; s < count_; ++s) {
      const StatePages& state = pages_->state[s];
      if (!state.sum_before && !state.sum_after) continue;
      const Bytes quanta = state.page_bytes / states_[s].quantum_bytes;
      streamed_[s] = PageStream::can_sum(state) &&
                     state.page_bytes % states_[s].quantum_bytes == 0 &&
                     (quanta * kQuantum) % kTile == 0 && state.offset % state.page_bytes == 0;
      if (streamed_[s]) unit = std::lcm(unit, static_cast<std::int64_t>(quanta) * kQuantum);
    }
    if (unit * threads > elements_ && threads > 1) {
      streamed_.fill(false);
      return kTile;
    }
    for (std::size_t s = 0; s < count_; ++s) {
      if (!streamed_[s]) continue;
      StatePages& state = pages_->state[s];
      const std::size_t count = whole_pages(state).count;
      if (state.sum_before) state.before.assign(count, 0);
      if (state.sum_after) state.after.assign(count, 0);
    }
    return unit;
  }

  // The passes of their own, before the update and after it.
  void sum_others(Pool& pool, bool before) const {
    for (std::size_t s = 0; pages_ != nullptr && s < count_; ++s) {
      StatePages& state = pages_->state[s];
      if (streamed_[s] || !(before ? state.sum_before : state.sum_after)) continue;
      sum_pages(pool, states_[s].data, state, before ? state.before : state.after);
    }
  }

  // Elements [begin, end) of the range.
  void run(std::int64_t begin, std::int64_t end) const {
    if (pages_ == nullptr) return run(begin, end, nullptr);
    Streams streams;
    for (std::size_t s = 0; s < count_; ++s) {
      if (!streamed_[s]) continue;
      StatePages& state = pages_->state[s];
      const Bytes position = states_[s].bytes(begin);
      const std::byte* data = states_[s].data;
      if (state.sum_before) streams.before[s] = PageStream(state, data, position, state.before);
      if (state.sum_after) streams.after[s] = PageStream(state, data, position, state.after);
    }
    run(begin, end, &streams);
    if (end < elements_) return;
    for (std::size_t s = 0; s < count_; ++s) {  // what pads the end
      if (streams.before[s].active()) streams.before[s].before_update(pages_->state[s].bytes);
      if (streams.after[s].active()) streams.after[s].after_update(pages_->state[s].bytes);
    }
  }

 private:
  struct Streams {
    std::array<PageStream, kMaxStates> before, after;
  };

  // Up to this element.
  void sum_before(Streams& streams, std::int64_t end) const {
    for (std::size_t s = 0; s < count_; ++s) {
      if (streams.before[s].active()) streams.before[s].before_update(states_[s].bytes(end));
    }
  }
  void sum_after(Streams& streams, std::int64_t end) const {
    for (std::size_t s = 0; s < count_; ++s) {
      if (streams.after[s].active()) streams.after[s].after_update(states_[s].bytes(end));
    }
  }

  void run(std::int64_t begin, std::int64_t end, Streams* streams) const {
    const DefaultFloatMode mode;
    alignas(64) float room[kTile];
    std::size_t range = find_range(first_element_ + begin);
    for (std::int64_t i = begin; i < end;) {
      const std::int64_t place = first_element_ + i;
      while (range + 1 < ranges_.size() && ranges_[range + 1].first_element <= place) ++range;
      std::int64_t limit = std::min(end - i, streams == nullptr ? kTile : kSummedElements);
      if (range + 1 < ranges_.size())
        limit = std::min(limit, ranges_[range + 1].first_element - place);
      const Coefficients& c = groups_[static_cast<std::size_t>(ranges_[range].group)];
      const std::int64_t lane = place % kQuantum;
      const bool whole = lane == 0 && limit >= kQuantum;
      limit = whole ? limit - limit % kQuantum : std::min(limit, kQuantum - lane);
      if (streams != nullptr) sum_before(*streams, i + limit);
      if (ranges_[range].keep) {
        if (zero_moments_) zero_moments(states_, i, limit);
      } else if (whole) {
        run_whole(states_, gradient_.values(i, limit, room, widen_), i, place, limit, c);
      } else {
        run_partial(i, lane, limit, c);
      }
      if (streams != nullptr) sum_after(*streams, i + limit);
      i += limit;
    }
  }

  using States = std::array<StateBytes, kMaxStates>;

  // The last range that starts at or before the element.
  std::size_t find_range(std::int64_t place) const {
    const auto after = std::upper_bound(
        ranges_.begin(), ranges_.end(), place,
        [](std::int64_t value, const GroupRange& range) { return value < range.first_element; });
    ZINF_CHECK(after != ranges_.begin(),
               str("element ", place, " comes before the first parameter group"));
    return static_cast<std::size_t>(after - ranges_.begin()) - 1;
  }

  void zero_moments(const States& states, std::int64_t i, std::int64_t elements) const {
    for (std::size_t s = 0; s < count_; ++s) {
      if (states[s].is_moment) std::memset(states[s].at(i), 0, states[s].bytes(elements));
    }
  }

  // Whole quanta, at most a tile. `i` is the element index in `states`, `place` its index in the
  // piece.
  void run_whole(const States& states, const float* gradient, std::int64_t i, std::int64_t place,
                 std::int64_t elements, const Coefficients& c) const {
    std::uint64_t keys[kTile / kQuantum];
    for (std::int64_t q = 0; q < elements / kQuantum; ++q) {
      keys[q] = random_bits(key_, static_cast<std::uint64_t>(place / kQuantum + q));
    }
    if (zero_moments_) zero_moments(states, i, elements);
    const auto pointer = [&](std::size_t s) -> void* {
      return s < count_ ? states[s].at(i) : nullptr;
    };
    kernel_({gradient, pointer(weight_), pointer(master_), pointer(first_), pointer(second_), keys,
             elements, c});
  }

  // Part of one quantum, by way of a copy with zeros around it.
  void run_partial(std::int64_t i, std::int64_t lane, std::int64_t elements,
                   const Coefficients& c) const {
    alignas(64) std::byte copies[kMaxStates][kQuantum * sizeof(float)] = {};
    alignas(64) float gradient[kQuantum] = {};
    alignas(64) float room[kQuantum];
    std::copy_n(gradient_.values(i, elements, room, widen_), elements, gradient + lane);
    States states = states_;
    for (std::size_t s = 0; s < count_; ++s) {
      states[s].data = copies[s];
      std::memcpy(states[s].at(lane), states_[s].at(i), states_[s].bytes(elements));
    }
    run_whole(states, gradient, 0, first_element_ + i - lane, kQuantum, c);
    for (std::size_t s = 0; s < count_; ++s) {
      std::memcpy(states_[s].at(i), states[s].at(lane), states_[s].bytes(elements));
    }
  }

  static constexpr std::size_t kAbsent = kMaxStates;
  void (*kernel_)(const UpdateArgs&);
  void (*widen_)(const std::uint16_t*, float*, std::int64_t);
  States states_{};
  std::size_t count_ = 0;
  std::size_t weight_ = kAbsent, master_ = kAbsent, first_ = kAbsent, second_ = kAbsent;
  Gradient gradient_;
  std::int64_t first_element_;
  std::span<const GroupRange> ranges_;
  const std::vector<Coefficients>& groups_;
  std::uint64_t key_;
  bool zero_moments_;
  std::int64_t elements_;
  UpdatePages* pages_;
  std::array<bool, kMaxStates> streamed_{};
};

// Elements of [first, first + elements) that belong to a group; checks the ranges on the way.
std::int64_t count_grouped(std::span<const GroupRange> ranges, std::size_t groups,
                           std::int64_t first, std::int64_t elements) {
  std::int64_t count = 0, previous_end = 0;
  for (const GroupRange& range : ranges) {
    ZINF_CHECK(range.first_element % kQuantum == 0 && range.first_element >= previous_end &&
                   range.elements > 0 && range.group >= 0 &&
                   static_cast<std::size_t>(range.group) < groups,
               str("bad parameter group range: first element ", range.first_element, ", elements ",
                   range.elements, ", group ", range.group));
    previous_end = range.first_element + range.elements;
    const std::int64_t begin = std::max(range.first_element, first);
    const std::int64_t end = std::min(previous_end, first + elements);
    count += std::max<std::int64_t>(0, end - begin);
  }
  return count;
}

}  // namespace

Optimizer::Optimizer(const Format& format, const Hyper& hyper, Isa isa)
    : format_(format), hyper_(hyper), isa_(isa), kernels_(&kernels(isa)) {
  ZINF_CHECK(why_invalid(format).empty(), std::string(why_invalid(format)));
  if (format_.algorithm == Algorithm::kSgd) {
    ZINF_CHECK(format_.has_momentum == (hyper.momentum != 0.0),
               "the format must say whether SGD has momentum");
  }
}

std::int64_t Optimizer::update(Pool& pool, const StateView& view, Gradient gradient,
                               std::int64_t first_element, std::int64_t elements,
                               std::span<const GroupRange> ranges, std::span<const Group> groups,
                               const StepScalars& scalars, UpdatePages* pages) const {
  ZINF_CHECK(first_element >= 0 && elements >= 0, "negative range");
  ZINF_CHECK(format_.moments != StateDtype::kInt8 ||
                 (first_element % kQuantum == 0 && elements % kQuantum == 0),
             "8-bit moments are updated in whole quanta");
  ZINF_CHECK(format_.weight == WeightDtype::kFp32 || format_.master != MasterWeights::kFp32 ||
                 std::none_of(ranges.begin(), ranges.end(), [](const auto& r) { return r.keep; }),
             "weights that follow an fp32 master are not kept");
  ZINF_CHECK(scalars.step >= 1, str("the step number starts at 1, found ", scalars.step));
  const std::int64_t grouped = count_grouped(ranges, groups.size(), first_element, elements);
  std::vector<Coefficients> per_group;
  per_group.reserve(groups.size());
  for (const Group& group : groups) {
    per_group.push_back(coefficients(format_.algorithm, hyper_, group, scalars));
  }
  RangeUpdate range(*kernels_, format_, view, gradient, first_element, ranges, per_group, scalars,
                    elements, pages);
  const std::int64_t unit = range.plan_streams(pool.threads());
  range.sum_others(pool, true);
  pool.for_ranges(elements, unit,
                  [&](std::int64_t begin, std::int64_t end) { range.run(begin, end); });
  range.sum_others(pool, false);
  return grouped;
}

}  // namespace zinf::optim
