#include "tests/step/poison.h"

#include <array>
#include <cstring>
#include <set>

#include "tests/plan/program_checker.h"

namespace zinf::testing {

Poison::Poison(const plan::ProgramSet& set, const plan::CompileInput& input,
               std::byte* device_arena, std::byte* host_arena)
    : set_(set) {
  const ProgramChecker lives(set, weight_is_only_written(input.states));
  for (const plan::Program& program : set.programs) {
    of_op_.emplace_back(program.ops.size());
    for (std::size_t b = 0; b < set.buffers.size(); ++b) {
      const plan::Buffer& buffer = set.buffers[b];
      const bool ring = buffer.name == "staging ring";  // its slots are reused within the segment
      if (!ring && (buffer.resident || lives.survives(program.segment, static_cast<int>(b))))
        continue;
      std::byte* arena = buffer.arena == plan::Arena::kDevice ? device_arena : host_arena;
      find_groups(set, program.segment, static_cast<int>(b), arena + buffer.offset);
    }
  }
}

void Poison::find_groups(const plan::ProgramSet& set, plan::Segment segment, int buffer,
                         std::byte* memory) {
  const std::vector<plan::Op>& ops = set.program(segment).ops;
  std::set<Bytes> cuts;
  for (const plan::Op& op : ops) {
    for (const plan::Operand& operand : op.operands) {
      if (operand.buffer == buffer) cuts.insert({operand.offset, operand.offset + operand.bytes});
    }
  }
  const bool ring = set.buffers[buffer].name == "staging ring";
  for (auto cut = cuts.begin(); cut != cuts.end() && std::next(cut) != cuts.end(); ++cut) {
    const Bytes begin = *cut, end = *std::next(cut);
    std::vector<int> users;
    std::array<std::int64_t, 3> content{};
    for (int i = 0; i < static_cast<int>(ops.size()); ++i) {
      bool uses = false;
      for (const plan::Operand& operand : ops[i].operands) {
        uses |= operand.buffer == buffer && operand.offset <= begin &&
                end <= operand.offset + operand.bytes;
      }
      if (!uses) continue;
      const std::array<std::int64_t, 3> found = {ops[i].piece, ops[i].first, ops[i].count};
      if (ring && !users.empty() && found != content) {
        add_group(memory + begin, end - begin, segment, users);
        users.clear();
      }
      content = found;
      users.push_back(i);
    }
    if (!users.empty()) add_group(memory + begin, end - begin, segment, users);
  }
}

void Poison::add_group(std::byte* memory, Bytes bytes, plan::Segment segment,
                       const std::vector<int>& users) {
  auto group = std::make_unique<Group>();
  group->memory = memory;
  group->bytes = bytes;
  group->users = static_cast<int>(users.size());
  group->left = group->users;
  for (const int op : users) of_op_[static_cast<std::size_t>(segment)][op].push_back(group.get());
  groups_.push_back(std::move(group));
}

void Poison::finished(const plan::Op& op, plan::Segment segment) {
  const auto number = static_cast<std::size_t>(&op - set_.program(segment).ops.data());
  for (Group* group : of_op_[static_cast<std::size_t>(segment)][number]) {
    if (group->left.fetch_sub(1) != 1) continue;
    group->left = group->users;
    std::memset(group->memory, 0xFF, group->bytes);
  }
}

}  // namespace zinf::testing
