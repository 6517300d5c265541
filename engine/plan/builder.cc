#include "engine/plan/builder.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/plan/visits.h"

namespace zinf::plan {

namespace {
constexpr int kNever = -1;
constexpr int kBefore = std::numeric_limits<int>::min() / 2;
constexpr int kAfter = std::numeric_limits<int>::max() / 2;
}  // namespace

Builder::Builder(const CompileInput& in, const WithOps& with_ops) : input(in), with_ops_(with_ops) {
  ZINF_CHECK(in.model != nullptr && !in.states.empty() && in.states[0].weight,
             "weight comes first in the schema");
  ZINF_CHECK(in.settings.chunk_elements % model::kTile == 0, "chunks are whole tiles");
  ZINF_CHECK(in.placement.pieces.size() == in.model->pieces.size(), "one placement per piece");
  ZINF_CHECK(in.settings.early_updates == 0 || in.settings.slots == 2,
             "an early update goes to the second slot");
  choose_early();
  for (int segment = 0; segment < kSegments; ++segment) {
    set.programs[segment].segment = static_cast<Segment>(segment);
  }
  set.micro_batches = in.settings.micro_batches;
  set.gradient_type = in.gradient_type;
  frozen_weight_ = in.states[0];
  // Every state has its place on disk, in an order that follows from the model and the formats
  // alone: a run can go on with any other placement, and what is in memory can be committed.
  for (int piece = 0; piece < static_cast<int>(in.model->pieces.size()); ++piece) {
    for (int state = 0; state < states_of(piece); ++state)
      state_range(piece, state, 0, in.model->pieces[piece].elements);
  }
  // A slot of the staging ring holds one chunk of every state that some piece keeps off the host,
  // and its gradient.
  std::int64_t largest = 0;
  for (const model::PieceSpec& piece : in.model->pieces)
    largest = std::max(largest, piece.elements);
  const std::int64_t chunk = std::min(in.settings.chunk_elements, largest);
  Bytes offset = 0;
  bool gradients = false;
  for (std::size_t state = 0; state < in.states.size(); ++state) {
    bool staged = false;
    for (std::size_t piece = 0; piece < in.model->pieces.size(); ++piece) {
      const bool has_state = state == 0 || in.model->pieces[piece].trainable;
      staged |=
          has_state && state_tier(static_cast<int>(piece), static_cast<int>(state)) != Tier::kHost;
      gradients |=
          in.model->pieces[piece].trainable && in.placement.pieces[piece].gradients != Tier::kHost;
    }
    state_section_.push_back(offset);
    if (staged) offset += round_up(in.states[state].bytes(chunk), kPage);
  }
  gradient_section_ = offset;
  if (gradients) offset += largest_gradient_bytes(chunk);
  slot_bytes_ = offset;
  if (slot_bytes_ > 0) {
    ring_ = buffer("staging ring", Arena::kHost, slot_bytes_ * in.settings.ring_slots,
                   Crosses::kResident);
  }
}

// The pieces whose gradients are complete first: their updates have the most time.
void Builder::choose_early() {
  const ModelFacts facts = derive_facts(*input.model);
  early_.assign(input.model->pieces.size(), 0);
  int left = input.settings.early_updates;
  for (auto stage = input.model->stages.rbegin(); stage != input.model->stages.rend(); ++stage) {
    for (const int piece : stage->pieces) {
      if (left == 0 || !can_update_early(input, facts, piece)) continue;
      early_[piece] = 1;
      --left;
    }
  }
}

int Builder::buffer(const std::string& name, Arena arena, Bytes bytes, Crosses crosses) {
  const auto found = buffer_by_name_.find(name);
  if (found != buffer_by_name_.end()) {
    ZINF_CHECK(set.buffers[found->second].bytes == bytes, str("one size per buffer: ", name));
    return found->second;
  }
  const int index = static_cast<int>(set.buffers.size());
  set.buffers.push_back({name, arena, bytes, 0, crosses == Crosses::kResident});
  Usage usage;
  usage.crosses = crosses;
  usage.first.fill(kNever);
  usage.last.fill(kNever);
  usage_.push_back(usage);
  buffer_by_name_[name] = index;
  return index;
}

int Builder::extent(const Extent& wanted) {
  const std::array<int, 5> key = {static_cast<int>(wanted.kind), wanted.piece, wanted.state,
                                  wanted.activation, wanted.micro_batch};
  const auto [entry, made] = extent_by_key_.try_emplace(key, static_cast<int>(set.extents.size()));
  if (made) set.extents.push_back(wanted);
  return entry->second;
}

void Builder::begin(Segment segment) {
  segment_ = segment;
  position_ = 0;
  next_slot_ = 0;
}

bool Builder::updates() const { return ends_step(segment_); }

bool Builder::forwards() const {
  return segment_ == Segment::kForward || segment_ == Segment::kUpdateForward ||
         segment_ == Segment::kRestForward || segment_ == Segment::kEvaluate;
}

void Builder::add(Op op) {
  const int position = position_++;
  for (const Operand& operand : op.operands) {
    Usage& usage = usage_[operand.buffer];
    const Buffer& buffer = set.buffers[operand.buffer];
    ZINF_CHECK(operand.offset + operand.bytes <= buffer.bytes,
               str("operand inside its buffer: ", buffer.name));
    int& first = usage.first[static_cast<int>(segment_)];
    if (first == kNever) first = position;
    usage.last[static_cast<int>(segment_)] = position;
  }
  if (!sizes_only()) set.programs[static_cast<int>(segment_)].ops.push_back(std::move(op));
}

Tier Builder::state_tier(int piece, int state) const {
  const PiecePlacement& placement = input.placement.pieces[piece];
  return state == 0 ? placement.weights : placement.optimizer;
}

int Builder::states_of(int piece) const {
  return input.model->pieces[piece].trainable ? static_cast<int>(input.states.size()) : 1;
}

const StateLayout& Builder::layout(int piece, int state) const { return input.states[state]; }

Bytes Builder::weight_bytes(int piece) const {
  return input.states[0].bytes(input.model->pieces[piece].elements);
}

int Builder::resident_state(int piece, int state) {
  const Tier tier = state_tier(piece, state);
  ZINF_CHECK(tier != Tier::kNvme, "a state in memory");
  const Bytes bytes =
      round_up(layout(piece, state).bytes(input.model->pieces[piece].elements), kPage);
  return buffer(str(input.model->pieces[piece].name, " ", layout(piece, state).name),
                tier == Tier::kDevice ? Arena::kDevice : Arena::kHost, bytes, Crosses::kResident);
}

Operand Builder::state_operand(int piece, int state, std::int64_t first, std::int64_t count,
                               int slot) {
  const Bytes bytes = layout(piece, state).bytes(count);
  if (state_tier(piece, state) == Tier::kHost) {
    return {Role::kState, state, resident_state(piece, state), layout(piece, state).bytes(first),
            bytes,        true};
  }
  Operand operand = slot_operand(Role::kState, slot, state_section_[state], bytes, true);
  operand.index = state;
  return operand;
}

ExtentRange Builder::state_range(int piece, int state, std::int64_t first, std::int64_t count) {
  const model::PieceSpec& spec = input.model->pieces[piece];
  Extent wanted;
  wanted.kind = ExtentKind::kState;
  wanted.piece = piece;
  wanted.state = state;
  wanted.bytes = round_up(layout(piece, state).bytes(spec.elements), kPage);
  wanted.slots = spec.trainable ? input.settings.slots : 1;
  wanted.page_bytes = layout(piece, state).page_bytes();
  const Bytes offset = layout(piece, state).bytes(first);
  ZINF_CHECK(offset % kPage == 0, "a chunk starts on a page");
  return {extent(wanted), offset, round_up(layout(piece, state).bytes(count), kPage)};
}

// Sums and the complete gradient take turns in one extent.
ExtentRange Builder::gradient_range(int piece, std::int64_t first, std::int64_t count,
                                    bool complete) {
  Extent wanted;
  wanted.kind = ExtentKind::kGradient;
  wanted.piece = piece;
  wanted.bytes = largest_gradient_bytes(input.model->pieces[piece].elements);
  wanted.page_bytes = input.gradient_bytes(kPageElements);
  return {extent(wanted), gradient_bytes(first, complete), gradient_bytes(count, complete)};
}

Bytes Builder::gradient_bytes(std::int64_t elements, bool complete) const {
  return complete ? input.gradient_bytes(elements) : gradient_sum_bytes(elements);
}

Bytes Builder::largest_gradient_bytes(std::int64_t elements) const {
  return gradient_bytes(elements, groups_of(input.settings) == 1);
}

int Builder::next_slot() {
  ZINF_CHECK(ring_ >= 0, "something is staged");
  const int slot = next_slot_;
  next_slot_ = (next_slot_ + 1) % input.settings.ring_slots;
  return slot;
}

Operand Builder::slot_operand(Role role, int slot, Bytes offset, Bytes bytes, bool writes) const {
  return {role, 0, ring_, slot_bytes_ * static_cast<Bytes>(slot) + offset, bytes, writes};
}

bool Builder::any_staged(int piece) const {
  for (int state = 0; state < states_of(piece); ++state) {
    if (state_tier(piece, state) != Tier::kHost) return true;
  }
  return input.placement.pieces[piece].gradients != Tier::kHost;
}

bool Builder::weight_follows_master() const {
  return std::any_of(input.states.begin(), input.states.end(),
                     [](const StateLayout& state) { return state.name == "master"; });
}

std::int64_t Builder::weight_chunk() const {
  const auto tiles = static_cast<std::int64_t>(slot_bytes_ / input.states[0].bytes_per_tile);
  const std::int64_t elements = std::max<std::int64_t>(tiles, 1) * model::kTile;
  // A page of checksums that is read in parts is not compared.
  return elements > kPageElements ? elements / kPageElements * kPageElements : elements;
}

std::array<std::pair<int, int>, kSegments> Builder::intervals(int index) const {
  const Usage& usage = usage_[index];
  std::array<std::pair<int, int>, kSegments> result;
  for (int s = 0; s < kSegments; ++s) {
    const auto segment = static_cast<Segment>(s);
    int first = usage.first[s], last = usage.last[s];
    if (usage.crosses == Crosses::kResident) {
      first = kBefore, last = kAfter;
    } else if (usage.crosses == Crosses::kTurn) {
      if (segment == Segment::kForward || segment == Segment::kUpdateForward ||
          segment == Segment::kRestForward) {
        // Dead before its birth, alive to the end, whether or not this segment touches it.
        if (first == kNever) first = 0;
        last = kAfter;
      } else if (is_backward(segment)) {
        if (last == kNever) last = 0;
        first = kBefore;
      }
    } else if (usage.crosses == Crosses::kStep) {
      if (is_backward(segment)) {
        if (first == kNever) first = 0;
        last = kAfter;
      } else if (ends_step(segment)) {
        if (last == kNever) last = 0;
        first = kBefore;
      }
    }
    result[s] = {first, last};
  }
  return result;
}

// Per buffer, a bit for each eighth of each segment in which it is alive: most pairs that never
// meet have none in common.
std::vector<std::uint64_t> Builder::eighths_alive() const {
  static_assert(kSegments * 8 <= 64);
  std::array<int, kSegments> length;
  length.fill(1);
  for (const Usage& usage : usage_) {
    for (int s = 0; s < kSegments; ++s) length[s] = std::max(length[s], usage.last[s] + 1);
  }
  std::vector<std::uint64_t> eighths(usage_.size(), 0);
  for (std::size_t i = 0; i < usage_.size(); ++i) {
    for (int s = 0; s < kSegments; ++s) {
      const auto [first, last] = lives_[i][s];
      if (last == kNever) continue;
      const auto eighth = [&](int time) {
        return static_cast<int>(std::int64_t{8} * std::clamp(time, 0, length[s] - 1) / length[s]);
      };
      const std::uint64_t up_to_last = (std::uint64_t{2} << eighth(last)) - 1;
      eighths[i] |= (up_to_last >> eighth(first) << eighth(first)) << (8 * s);
    }
  }
  return eighths;
}

void Builder::assign_offsets() {
  const int count = static_cast<int>(set.buffers.size());
  lives_.clear();
  for (int i = 0; i < count; ++i) lives_.push_back(intervals(i));
  // One life per segment; where there is none, one that meets nothing. The innermost loops of
  // planning: over plain arrays, small ones.
  struct Lives {
    std::array<int, kSegments> first, last;
  };
  struct Placed {
    Bytes begin, end;
    std::uint64_t eighths;
    int index;
  };
  std::vector<Lives> live(count);
  std::vector<int> order(count);
  for (int i = 0; i < count; ++i) {
    order[i] = i;
    const auto& of_buffer = lives_[static_cast<std::size_t>(i)];
    for (int s = 0; s < kSegments; ++s) {
      const auto [first, last] = of_buffer[s];
      live[i].first[s] = last == kNever ? kAfter + 1 : first;
      live[i].last[s] = last == kNever ? kBefore - 1 : last;
    }
  }
  const std::vector<std::uint64_t> eighths = eighths_alive();
  // Residents first, then large before small: the classic order for first fit.
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    const Buffer &x = set.buffers[a], &y = set.buffers[b];
    if (x.resident != y.resident) return x.resident;
    return x.bytes > y.bytes;
  });
  const auto overlap = [&](int a, int b) {
    const Lives &x = live[a], &y = live[b];
    int meets = 0;
    for (int s = 0; s < kSegments; ++s)
      meets |=
          static_cast<int>(x.first[s] <= y.last[s]) & static_cast<int>(y.first[s] <= x.last[s]);
    return meets != 0;
  };
  for (const Arena arena : {Arena::kDevice, Arena::kHost}) {
    std::vector<Placed> placed;  // by offset
    Bytes& peak = set.peak[static_cast<int>(arena)];
    for (const int index : order) {
      Buffer& buffer = set.buffers[index];
      if (buffer.arena != arena) continue;
      const Bytes bytes = round_up(buffer.bytes, kPage);
      Bytes offset = 0;
      for (const Placed& there : placed) {
        if (there.begin >= offset + bytes) break;
        if (there.end > offset && (there.eighths & eighths[index]) != 0 &&
            overlap(index, there.index))
          offset = there.end;
      }
      buffer.offset = offset;
      peak = std::max(peak, offset + bytes);
      const auto at =
          std::lower_bound(placed.begin(), placed.end(), offset,
                           [](const Placed& there, Bytes from) { return there.begin < from; });
      placed.insert(at, {offset, offset + bytes, eighths[index], index});
    }
  }
}

namespace {
// The classes that people know, by how the emitter names its buffers.
std::string class_of(const Buffer& buffer) {
  if (buffer.name == "staging ring") return buffer.name;
  if (buffer.resident) return "resident states";
  for (const char* known : {"weights", "gradient", "workspace", "kept"}) {
    if (buffer.name.starts_with(known) && !buffer.name.starts_with("gradient of"))
      return known == std::string("gradient") ? "gradients"
             : known == std::string("kept")   ? "kept activations"
                                              : known;
  }
  return "activations";
}
}  // namespace

// Walks each segment's buffers in time to the moment at which most is alive.
void Builder::account_peak() {
  struct Change {
    int time;
    std::int64_t bytes;
  };
  for (const Arena arena : {Arena::kDevice, Arena::kHost}) {
    std::int64_t most = 0;
    int segment = 0, moment = 0;
    for (int s = 0; s < kSegments; ++s) {
      std::vector<Change> changes;  // born before the op of that time, dead after it
      for (std::size_t i = 0; i < set.buffers.size(); ++i) {
        const auto [first, last] = lives_[i][static_cast<std::size_t>(s)];
        const auto bytes = static_cast<std::int64_t>(set.buffers[i].bytes);
        if (set.buffers[i].arena != arena || last == kNever) continue;
        changes.push_back({first, bytes});
        changes.push_back({last + 1, -bytes});
      }
      std::sort(changes.begin(), changes.end(), [](const Change& x, const Change& y) {
        return std::pair(x.time, x.bytes) < std::pair(y.time, y.bytes);
      });
      std::int64_t now = 0;
      for (const Change& change : changes) {
        now += change.bytes;
        if (now > most) most = now, segment = s, moment = change.time;
      }
    }
    auto& classes = set.at_peak[static_cast<int>(arena)];
    for (std::size_t i = 0; i < set.buffers.size(); ++i) {
      const auto [first, last] = lives_[i][static_cast<std::size_t>(segment)];
      if (set.buffers[i].arena == arena && last != kNever && first <= moment && moment <= last)
        classes[class_of(set.buffers[i])] += set.buffers[i].bytes;
    }
    const Bytes peak = set.peak[static_cast<int>(arena)];
    if (peak > static_cast<Bytes>(most)) classes["gaps"] = peak - static_cast<Bytes>(most);
  }
}

ProgramSet Builder::finish(bool by_class) {
  assign_offsets();
  if (by_class) account_peak();
  return std::move(set);
}

}  // namespace zinf::plan
