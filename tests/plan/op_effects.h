// What each kind of op reads and writes, said once more and independently of the compiler's
// scoreboard: the checkers in this folder, and the poison of the executor's tests, judge programs
// by it.
#pragma once

#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/plan/placement.h"
#include "engine/plan/program.h"

namespace zinf::testing {

struct Access {
  int buffer = -1;  // -1: an extent or the manifest
  int extent = -1;  // -1: a buffer or the manifest
  Bytes begin = 0;  // in the buffer or the extent
  Bytes end = 0;
  bool reads = false;
  bool writes = false;
};

// A separate master makes the weight: the update then only writes it.
inline bool weight_is_only_written(const std::vector<plan::StateLayout>& states) {
  for (const plan::StateLayout& state : states) {
    if (state.name == "master") return true;
  }
  return false;
}

inline Access effect(const plan::Op& op, std::size_t number, bool only_written_weight) {
  using plan::OpKind;
  using plan::Role;
  const plan::Operand& operand = op.operands[number];
  Access access = {operand.buffer, -1,   operand.offset, operand.offset + operand.bytes,
                   false,          false};
  const auto set = [&](bool reads, bool writes) { access.reads = reads, access.writes = writes; };
  switch (op.kind) {
    case OpKind::kRead:
      set(false, true);
      break;
    case OpKind::kWrite:
      set(true, false);
      break;
    case OpKind::kCopyIn:
    case OpKind::kCopyOut:
    case OpKind::kRound:
      set(number % 2 == 0, number % 2 == 1);
      break;
    case OpKind::kGather:  // every range adds its rows to those that the ranges before have picked
      number == 0 ? set(true, false) : set(op.first > 0, true);
      break;
    case OpKind::kAddRows:
      number == 0 ? set(!op.zero_first, true) : set(true, false);
      break;
    case OpKind::kNorm:
      set(true, false);
      break;
    case OpKind::kUpdate:
      if (operand.role == Role::kState) set(!(operand.index == 0 && only_written_weight), true);
      if (operand.role == Role::kGradient) set(true, false);
      break;
    case OpKind::kCompute:
      switch (operand.role) {
        case Role::kGradient:
          set(!op.first_gradient, true);
          break;
        case Role::kInputGradient:
          set(operand.adds, true);
          break;
        case Role::kSums:  // begun by the first slice's forward call
          set(op.mode == model::CallMode::kBackward || op.first > 0, true);
          break;
        case Role::kOutput:
        case Role::kWorkspace:
          set(false, true);
          break;
        case Role::kKept:
          set(op.mode == model::CallMode::kBackward, op.mode != model::CallMode::kBackward);
          break;
        default:
          set(true, false);
      }
      break;
    case OpKind::kCommit:
      break;
  }
  return access;
}

// Of one op, buffers and extents. The manifest is the access without either: a commit writes it,
// and a write to a state may not pass a commit.
inline std::vector<Access> effects(const plan::ProgramSet& set, const plan::Op& op,
                                   bool only_written_weight) {
  std::vector<Access> all;
  for (std::size_t i = 0; i < op.operands.size(); ++i)
    all.push_back(effect(op, i, only_written_weight));
  const bool writes = op.kind == plan::OpKind::kWrite;
  for (const plan::ExtentRange& range : op.extents) {
    all.push_back({-1, range.extent, range.offset, range.offset + range.bytes, !writes, writes});
    if (writes && set.extents[range.extent].kind == plan::ExtentKind::kState)
      all.push_back({-1, -1, 0, 1, true, false});
  }
  if (op.kind == plan::OpKind::kCommit) {
    all.push_back({-1, -1, 0, 1, true, true});
    for (std::size_t e = 0; e < set.extents.size(); ++e) {
      if (set.extents[e].kind != plan::ExtentKind::kState) continue;
      all.push_back({-1, static_cast<int>(e), 0, set.extents[e].bytes, true, false});
    }
  }
  return all;
}

}  // namespace zinf::testing
