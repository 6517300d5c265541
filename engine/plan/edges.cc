// Edges: a scoreboard of who last wrote and who has since read every byte range of the arenas and
// extents.
#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "engine/plan/builder.h"

namespace zinf::plan {

namespace {

// Ops are numbered through all programs of a scoreboard.
using OpNumber = int;

class Scoreboard {
 public:
  explicit Scoreboard(std::size_t spaces) : spaces_(spaces) {}

  // Collects the ops that an access of [begin, end) in `space` must wait for, and records the
  // access.
  void access(int space, Bytes begin, Bytes end, bool writes, OpNumber op,
              std::vector<OpNumber>& waits) {
    if (begin >= end) return;
    auto& ranges = spaces_[static_cast<std::size_t>(space)];
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
  std::vector<std::map<Bytes, Range>> spaces_;
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

// Which segments may follow which without a drain.
constexpr std::pair<Segment, Segment> kBorders[] = {
    {Segment::kForward, Segment::kBackward},
    {Segment::kBackward, Segment::kUpdateForward},
    {Segment::kUpdateForward, Segment::kBackward},
    {Segment::kBackward, Segment::kUpdateOnly},
    {Segment::kForward, Segment::kBackwardEarly},
    {Segment::kBackwardEarly, Segment::kRestForward},
    {Segment::kRestForward, Segment::kBackwardEarly},
    {Segment::kBackwardEarly, Segment::kUpdateForward},
    {Segment::kUpdateForward, Segment::kBackwardEarly},
    {Segment::kBackwardEarly, Segment::kRestOnly},
    {Segment::kBackwardEarly, Segment::kUpdateOnly},
    {Segment::kRestForward, Segment::kBackward},
};

// Segments in a row on one scoreboard: each one's own edges and those across its border to the one
// before. What is older plays no part.
class Chain {
 public:
  Chain(ProgramSet& set, bool overlap)
      : set_(set), overlap_(overlap), board_(kFirstExtentSpace + set.extents.size()) {}

  void add(Segment segment) {
    std::vector<Op>& ops = set_.programs[static_cast<int>(segment)].ops;
    const OpNumber end = first_ + static_cast<int>(ops.size());
    auto* links =
        last_ ? &set_.links[static_cast<int>(*last_)][static_cast<int>(segment)] : nullptr;
    if (links != nullptr) links->clear();
    for (OpNumber number = first_; number < end; ++number) {
      const int i = number - first_;
      Op& op = ops[static_cast<std::size_t>(i)];
      op.after.clear();
      waits_.clear();
      visit_op(set_, op, number, board_, waits_);
      if (!overlap_ && i > 0) waits_.push_back(number - 1);
      sort_unique(waits_);
      for (const OpNumber wait : waits_) {
        if (wait >= first_ && wait != number) op.after.push_back(wait - first_);
        if (wait < first_ && wait >= before_) links->push_back({i, wait - before_});
      }
    }
    before_ = first_;
    first_ = end;
    last_ = segment;
  }
  Segment last() const { return *last_; }

 private:
  ProgramSet& set_;
  bool overlap_;
  Scoreboard board_;
  std::optional<Segment> last_;
  OpNumber before_ = 0, first_ = 0;  // of the last segment, of the next one
  std::vector<OpNumber> waits_;
};

}  // namespace

void add_edges(ProgramSet& set, bool overlap) {
  std::vector<std::pair<Segment, Segment>> borders;
  const auto runs = [&](Segment segment) { return !set.program(segment).ops.empty(); };
  for (const auto& border : kBorders) {
    if (runs(border.first) && runs(border.second)) borders.push_back(border);
  }
  // As few scoreboards as cross every border.
  while (!borders.empty()) {
    Chain chain(set, overlap);
    chain.add(borders.front().first);
    for (auto next = borders.begin(); next != borders.end();) {
      chain.add(next->second);
      borders.erase(next);
      next = std::find_if(borders.begin(), borders.end(),
                          [&](const auto& border) { return border.first == chain.last(); });
    }
  }
  for (const Program& program : set.programs) {
    const bool crossed =
        std::any_of(std::begin(kBorders), std::end(kBorders), [&](const auto& border) {
          return (border.first == program.segment || border.second == program.segment) &&
                 runs(border.first) && runs(border.second);
        });
    if (!crossed) Chain(set, overlap).add(program.segment);
  }
}

}  // namespace zinf::plan
