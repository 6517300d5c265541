#include "engine/plan/program.h"

#include <algorithm>

namespace zinf::plan {

const char* lane_name(Lane lane) {
  switch (lane) {
    case Lane::kCompute:
      return "compute";
    case Lane::kH2D:
      return "h2d";
    case Lane::kD2H:
      return "d2h";
    case Lane::kRead:
      return "nvme_read";
    case Lane::kWrite:
      return "nvme_write";
    case Lane::kOptimizer:
      return "optimizer";
    case Lane::kCommit:
      return "commit";
  }
  return "?";
}

const char* tier_name(Tier tier) {
  switch (tier) {
    case Tier::kDevice:
      return "device";
    case Tier::kHost:
      return "host";
    case Tier::kNvme:
      return "nvme";
  }
  return "?";
}

const char* segment_name(Segment segment) {
  switch (segment) {
    case Segment::kForward:
      return "forward";
    case Segment::kUpdateForward:
      return "update beside forward";
    case Segment::kBackward:
      return "backward";
    case Segment::kUpdateOnly:
      return "update only";
    case Segment::kEvaluate:
      return "evaluate";
    case Segment::kBackwardEarly:
      return "backward with early updates";
    case Segment::kRestForward:
      return "rest of the update beside forward";
    case Segment::kRestOnly:
      return "rest of the update only";
  }
  return "?";
}

bool is_backward(Segment segment) {
  return segment == Segment::kBackward || segment == Segment::kBackwardEarly;
}

bool ends_step(Segment segment) {
  return segment == Segment::kUpdateForward || segment == Segment::kUpdateOnly ||
         segment == Segment::kRestForward || segment == Segment::kRestOnly;
}

const char* op_kind_name(OpKind kind) {
  switch (kind) {
    case OpKind::kRead:
      return "read";
    case OpKind::kWrite:
      return "write";
    case OpKind::kCopyIn:
      return "copy in";
    case OpKind::kCopyOut:
      return "copy out";
    case OpKind::kCompute:
      return "compute";
    case OpKind::kRound:
      return "round";
    case OpKind::kGather:
      return "gather rows";
    case OpKind::kAddRows:
      return "add rows";
    case OpKind::kNorm:
      return "norm";
    case OpKind::kUpdate:
      return "update";
    case OpKind::kCommit:
      return "commit";
  }
  return "?";
}

bool decides(const Op& op) {
  return op.lane == Lane::kCompute || op.kind == OpKind::kNorm || op.kind == OpKind::kAddRows ||
         op.kind == OpKind::kGather;
}

bool optimizes(const ProgramSet& set, const Op& op) {
  if (op.kind == OpKind::kUpdate) return true;
  if (op.kind != OpKind::kRead && op.kind != OpKind::kWrite) return false;
  return std::any_of(op.extents.begin(), op.extents.end(), [&](const ExtentRange& range) {
    const Extent& extent = set.extents[static_cast<std::size_t>(range.extent)];
    return extent.kind == ExtentKind::kState && (op.kind == OpKind::kWrite || extent.state > 0);
  });
}

std::vector<HostRange> updated_in_host(const ProgramSet& set) {
  std::vector<HostRange> ranges;
  for (const Program& program : set.programs) {
    for (const Op& op : program.ops) {
      if (op.kind != OpKind::kUpdate) continue;
      for (const Operand& operand : op.operands) {
        const Buffer& buffer = set.buffers[static_cast<std::size_t>(operand.buffer)];
        if (buffer.arena == Arena::kHost)
          ranges.push_back({buffer.offset + operand.offset, operand.bytes});
      }
    }
  }
  return ranges;
}

Bytes Op::bytes() const {
  Bytes sum = 0;
  for (const ExtentRange& range : extents) sum += range.bytes;
  if (kind == OpKind::kCopyIn || kind == OpKind::kCopyOut) {
    for (const Operand& operand : operands) sum += operand.writes ? operand.bytes : 0;
  }
  return sum;
}

}  // namespace zinf::plan
