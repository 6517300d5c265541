// Programs: what the plan compiles to and the executor runs. Plain data.
//
// A step is a cycle of segments. At a segment's borders the buffers are in one of three canonical
// states:
//   A  nothing but resident buffers   B  after a forward: saved activations   C  after a backward:
//   gradients
// so that segments can follow each other in any order that matches.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/model/compute.h"
#include "engine/model/model_spec.h"

namespace zinf::plan {

enum class Tier { kDevice, kHost, kNvme };
enum class Arena { kDevice, kHost };

// A lane issues its ops in program order and may complete them in any order.
enum class Lane { kCompute, kH2D, kD2H, kRead, kWrite, kOptimizer, kCommit };
constexpr int kLanes = 7;
const char* lane_name(Lane lane);  // as in metrics: "compute", "h2d", "d2h", "nvme_read", ...
const char* tier_name(Tier tier);

enum class Segment {
  kForward,        // A -> B: the first step, and after a drain
  kUpdateForward,  // C -> B: update beside the next step's forward
  kBackward,       // B -> C (with several groups: also the later groups' forwards)
  kUpdateOnly,     // C -> A: drains before evaluation, export, exit
  kEvaluate,       // A -> A: forward and loss only, or the next token
  // With early updates (CompileSettings::early_updates), beside those above:
  kBackwardEarly,  // B -> C: the early pieces are updated as well, with clip factor 1, into the
                   // slot that does not hold the state. If the norm clips after all, an update of
                   // everything follows as after kBackward (the redo); otherwise one of these:
  kRestForward,    // C -> B: the other pieces' update beside the next step's forward
  kRestOnly,       // C -> A: the other pieces' update, to drain
};
constexpr int kSegments = 8;
const char* segment_name(Segment segment);
// What a segment does; kBackwardEarly both computes a backward and updates.
bool is_backward(Segment segment);
bool ends_step(Segment segment);  // updates what waits and commits

struct Buffer {
  std::string name;
  Arena arena = Arena::kHost;
  Bytes bytes = 0;
  Bytes offset = 0;       // in its arena, a multiple of 4 KiB
  bool resident = false;  // alive in every canonical state
};

enum class ExtentKind { kState, kGradient, kActivation };

// A range of bytes on NVMe with a fixed place; mutable states have two slots. The kState extents
// come first, in an order that does not depend on the placement; those of states that live in
// memory are written by commits only.
struct Extent {
  ExtentKind kind = ExtentKind::kState;
  int piece = -1;
  int state = -1;       // index into the state schema, kState only
  int activation = -1;  // kActivation only
  int micro_batch = -1;
  Bytes bytes = 0;
  int slots = 1;
  Bytes page_bytes = 256 * kKiB;  // of its checksums
};

enum class OpKind {
  kRead,     // NVMe -> host buffer: extents[i] -> operands[i]
  kWrite,    // host buffer -> NVMe: operands[i] -> extents[i]
  kCopyIn,   // host -> device: operands 2i (from) and 2i+1 (to)
  kCopyOut,  // device -> host: the same
  kCompute,  // one stage, one micro-batch, one call mode
  kRound,    // a range of a complete gradient: fp32 sums -> the type in which it waits
  kGather,   // rows of a table range -> the rows buffer, all micro-batches
  kAddRows,  // row gradients, summed per id in position order, -> a range of a table's gradient
  kNorm,     // sums of squares per tile of a gradient range
  kUpdate,   // optimizer step of a range of a piece
  kCommit,   // state is durable: sync, then the manifest
};
const char* op_kind_name(OpKind kind);

enum class Role {
  kFrom,
  kTo,        // copies, transfers and rounding
  kState,     // index: state of the schema
  kGradient,  // of a compute call: fp32 sums, index: position among the stage's pieces; else the
              // complete gradient, of ProgramSet::gradient_type
  kWeights,   // index: position among the stage's pieces
  kInput,
  kInputGradient,
  kOutput,
  kOutputGradient,  // index: position among the stage's inputs or outputs
  kKept,
  kWorkspace,
  kRows,
  kRowGradients,
  kSums,  // of a compute call with a slice of the table: model::TableSlice::sums
};

struct Operand {
  Role role = Role::kFrom;
  int index = 0;
  int buffer = -1;
  Bytes offset = 0;
  Bytes bytes = 0;
  bool writes = false;
  bool adds = false;  // kInputGradient: added to what is there
};

struct ExtentRange {
  int extent = -1;
  Bytes offset = 0;
  Bytes bytes = 0;
};

struct Op {
  OpKind kind = OpKind::kCompute;
  Lane lane = Lane::kCompute;
  int piece = -1;
  int stage = -1;
  int micro_batch =
      -1;  // -1: not of one micro-batch. Ops of micro-batches beyond a short step's do nothing
  model::CallMode mode = model::CallMode::kForward;
  bool first_gradient = false;  // compute: gradients are overwritten, not added to
  bool first_of_visit = true;   // compute: weights and workspace are not those of the call before
  bool zero_first = false;      // kAddRows: the gradient range holds nothing yet
  // kRead: the range as the update of this segment leaves it (true), or as the segment finds it
  // (false).
  bool after_update = false;
  // Element range of the piece; of a compute op: the slice of the table that it gets, if any.
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::vector<Operand> operands;
  std::vector<ExtentRange> extents;
  std::vector<int> after;  // earlier ops of this program that must have completed
  Bytes bytes() const;     // moved by a read, write or copy
};

struct ProgramSet;

// What the decision at the border after a backward waits for: losses, norms, all that reads the
// batch. Early updates may go on beside the next segment.
bool decides(const Op& op);

// What an update is made of: itself, and the reads and writes of the states that it works on. (A
// working weight alone is read for a visit.)
bool optimizes(const ProgramSet& set, const Op& op);

// Of the host arena: what updates work on, each update's states and gradient.
struct HostRange {
  Bytes offset = 0;
  Bytes bytes = 0;
};
std::vector<HostRange> updated_in_host(const ProgramSet& set);

struct Program {
  Segment segment = Segment::kForward;
  std::vector<Op> ops;
};

// Edges into the segment that ran just before: op `op` waits for `previous_op` of that program.
struct Link {
  int op = 0;
  int previous_op = 0;
};

struct ProgramSet {
  std::vector<Buffer> buffers;
  std::vector<Extent> extents;
  std::array<Program, kSegments> programs;
  // links[previous][next], for the pairs that follow each other without a drain.
  std::array<std::array<std::vector<Link>, kSegments>, kSegments> links;
  std::array<Bytes, 2> peak{};  // per arena: the largest offset + bytes
  // Per arena: what it holds when it holds most, by class of buffer; "gaps" make up the peak.
  std::array<std::map<std::string, Bytes>, 2> at_peak;
  int micro_batches = 0;
  model::DType gradient_type = model::DType::kFloat32;
  const Program& program(Segment segment) const { return programs[static_cast<int>(segment)]; }
};

}  // namespace zinf::plan
