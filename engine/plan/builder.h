// Private to the compiler: collects ops and buffers, and remembers where in each segment a buffer
// is used.
#pragma once

#include <array>
#include <limits>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/plan/compile.h"

namespace zinf::plan {

// Which canonical state a buffer is part of, beside the segments in which ops touch it.
enum class Crosses {
  kNothing,   // born and dead inside one segment
  kTurn,      // state B: from a forward segment to the backward segment
  kStep,      // state C: from the backward segment to the update
  kResident,  // all states
};

class Builder {
 public:
  // with_ops: per segment. false: its ops are not kept, only what memory they take, for which the
  // emitter may leave ops out.
  using WithOps = std::array<bool, kSegments>;
  Builder(const CompileInput& input, const WithOps& with_ops);

  const CompileInput& input;
  ProgramSet set;

  // The buffer with this name, made at first mention. Same name, same buffer, in every segment.
  int buffer(const std::string& name, Arena arena, Bytes bytes, Crosses crosses);
  int extent(const Extent&
                 extent);  // the same for extents, by (kind, piece, state, activation, micro-batch)

  void begin(Segment segment);
  Segment segment() const { return segment_; }
  bool sizes_only() const { return !with_ops_[static_cast<int>(segment_)]; }
  bool updates() const;   // the current segment updates what waits
  bool forwards() const;  // the current segment computes a forward
  bool early(int piece) const { return early_[piece] != 0; }  // updated during kBackwardEarly
  void add(Op op);

  // Where things are.
  Tier state_tier(int piece, int state) const;
  int states_of(int piece) const;            // 1 for a frozen piece
  int resident_state(int piece, int state);  // the buffer of a state in host or device memory
  Operand state_operand(int piece, int state, std::int64_t first, std::int64_t count, int slot);
  ExtentRange state_range(int piece, int state, std::int64_t first, std::int64_t count);
  // Of the complete gradient, or of the sums that a later group goes on with.
  ExtentRange gradient_range(int piece, std::int64_t first, std::int64_t count, bool complete);
  Bytes gradient_bytes(std::int64_t elements, bool complete) const;
  int next_slot();  // of the staging ring, in turn
  Operand slot_operand(Role role, int slot, Bytes offset, Bytes bytes, bool writes) const;
  Bytes slot_bytes() const { return slot_bytes_; }
  Bytes gradient_section() const { return gradient_section_; }
  bool any_staged(int piece) const;
  bool weight_follows_master()
      const;  // the update makes the weight from a separate master: it need not read it
  std::int64_t weight_chunk() const;  // elements of weights that fill one slot
  Bytes weight_bytes(int piece) const;
  const StateLayout& layout(int piece, int state) const;

  // Finishes: offsets and peaks, also by class of buffer.
  ProgramSet finish(bool by_class);

 private:
  struct Usage {
    Crosses crosses = Crosses::kNothing;
    std::array<int, kSegments> first;
    std::array<int, kSegments> last;
  };
  void choose_early();
  Bytes largest_gradient_bytes(std::int64_t elements) const;  // of what leaves the device
  std::vector<std::uint64_t> eighths_alive() const;
  void assign_offsets();
  void account_peak();
  std::array<std::pair<int, int>, kSegments> intervals(int buffer) const;

  WithOps with_ops_;
  Segment segment_ = Segment::kForward;
  int position_ = 0;  // of the next op in its segment
  std::unordered_map<std::string, int> buffer_by_name_;
  std::map<std::array<int, 5>, int> extent_by_key_;
  std::vector<Usage> usage_;
  std::vector<char> early_;                                        // per piece
  std::vector<std::array<std::pair<int, int>, kSegments>> lives_;  // intervals() of every buffer
  StateLayout frozen_weight_;
  std::vector<Bytes> state_section_;  // offset of each staged state inside a slot
  Bytes gradient_section_ = 0;
  Bytes slot_bytes_ = 0;
  int ring_ = -1;
  int next_slot_ = 0;
};

// The edges of the programs that have ops, and those into the program that ran before. Two ops that
// touch the same bytes, one of them writing, keep their order: reuse of a buffer is an edge like
// any other.
void add_edges(ProgramSet& set, bool overlap);

}  // namespace zinf::plan
