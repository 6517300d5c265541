// Edges: a scoreboard of who last wrote and who has since read every byte range of the arenas and
// extents.
#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "engine/plan/builder.h"

namespace zinf::plan {

namespace {

// Ops are numbered through the previous program and the current one: the previous one's are
// negative.
using OpNumber = int;

class Scoreboard {
 public:
  // Collects the ops that an access of [begin, end) in `space` must wait for, and records the
  // access.
  void access(int space, Bytes begin, Bytes end, bool writes, OpNumber op,
              std::vector<OpNumber>& waits) {
    if (begin >= end) return;
    auto& ranges = spaces_[space];
    split(ranges, begin);
    split(ranges, end);
    Bytes at = begin;
    for (auto it = ranges.lower_bound(begin); at < end;) {
      if (it == ranges.end() || it->first > at) {  // a gap that nobody has touched yet
        const Bytes gap_end = it == ranges.end() ? end : std::min(end, it->first);
        it = std::next(ranges.emplace_hint(it, at, Range{gap_end, kNobody, {}}), 0);
      }
      Range& range = it->second;
      if (range.writer != kNobody) waits.push_back(range.writer);
      if (writes) {
        waits.insert(waits.end(), range.readers.begin(), range.readers.end());
        range.writer = op;
        range.readers.clear();
      } else if (range.readers.empty() || range.readers.back() != op) {
        range.readers.push_back(op);
      }
      at = range.end;
      ++it;
    }
  }

 private:
  static constexpr OpNumber kNobody = std::numeric_limits<int>::max();
  struct Range {
    Bytes end;
    OpNumber writer;
    std::vector<OpNumber> readers;
  };
  static void split(std::map<Bytes, Range>& ranges, Bytes at) {
    auto it = ranges.upper_bound(at);
    if (it == ranges.begin()) return;
    --it;
    if (it->first == at || it->second.end <= at) return;
    Range right = it->second;
    it->second.end = at;
    ranges.emplace(at, std::move(right));
  }
  std::map<int, std::map<Bytes, Range>> spaces_;
};

constexpr int kManifestSpace = 2;
constexpr int kFirstExtentSpace = 3;

void visit_op(const ProgramSet& set, const Op& op, OpNumber number, Scoreboard& board,
              std::vector<OpNumber>& waits) {
  for (const Operand& operand : op.operands) {
    const Buffer& buffer = set.buffers[operand.buffer];
    const Bytes begin = buffer.offset + operand.offset;
    board.access(static_cast<int>(buffer.arena), begin, begin + operand.bytes, operand.writes,
                 number, waits);
  }
  for (const ExtentRange& range : op.extents) {
    board.access(kFirstExtentSpace + range.extent, range.offset, range.offset + range.bytes,
                 op.kind == OpKind::kWrite, number, waits);
    // A step's first write to a slot waits until the commit that may still need that slot is done.
    if (op.kind == OpKind::kWrite && set.extents[range.extent].kind == ExtentKind::kState) {
      board.access(kManifestSpace, 0, 1, false, number, waits);
    }
  }
  if (op.kind == OpKind::kCommit) {
    for (std::size_t extent = 0; extent < set.extents.size(); ++extent) {
      if (set.extents[extent].kind != ExtentKind::kState) continue;
      board.access(kFirstExtentSpace + static_cast<int>(extent), 0, set.extents[extent].bytes,
                   false, number, waits);
    }
    board.access(kManifestSpace, 0, 1, true, number, waits);
  }
}

void sort_unique(std::vector<int>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

void link(ProgramSet& set, Segment previous, Segment next) {
  const Program& before = set.program(previous);
  const Program& after = set.program(next);
  Scoreboard board;
  std::vector<OpNumber> waits;
  const int base = static_cast<int>(before.ops.size());
  for (int i = 0; i < base; ++i) {
    waits.clear();
    visit_op(set, before.ops[i], i - base, board, waits);
  }
  auto& links = set.links[static_cast<int>(previous)][static_cast<int>(next)];
  for (int i = 0; i < static_cast<int>(after.ops.size()); ++i) {
    waits.clear();
    visit_op(set, after.ops[i], i, board, waits);
    sort_unique(waits);
    for (const OpNumber wait : waits) {
      if (wait < 0) links.push_back({i, wait + base});
    }
  }
}

}  // namespace

void add_edges(ProgramSet& set, bool overlap) {
  for (Program& program : set.programs) {
    Scoreboard board;
    for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
      Op& op = program.ops[i];
      op.after.clear();
      visit_op(set, op, i, board, op.after);
      if (!overlap && i > 0) op.after.push_back(i - 1);
      std::erase(op.after, i);
      sort_unique(op.after);
    }
  }
  link(set, Segment::kForward, Segment::kBackward);
  link(set, Segment::kUpdateForward, Segment::kBackward);
  link(set, Segment::kBackward, Segment::kUpdateForward);
  link(set, Segment::kBackward, Segment::kUpdateOnly);
  if (set.program(Segment::kBackwardEarly).ops.empty()) return;
  for (const Segment forward : {Segment::kForward, Segment::kUpdateForward, Segment::kRestForward})
    link(set, forward, Segment::kBackwardEarly);
  link(set, Segment::kRestForward, Segment::kBackward);
  for (const Segment update :
       {Segment::kUpdateForward, Segment::kUpdateOnly, Segment::kRestForward, Segment::kRestOnly})
    link(set, Segment::kBackwardEarly, update);
}

}  // namespace zinf::plan
