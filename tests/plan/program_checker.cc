#include "tests/plan/program_checker.h"

#include <algorithm>
#include <bitset>

#include "engine/base/str.h"

namespace zinf::testing {

namespace {
constexpr std::size_t kMostOps = 4096;
}

ProgramChecker::ProgramChecker(const plan::ProgramSet& set, bool only_written_weight)
    : set_(set), only_written_weight_(only_written_weight) {
  using plan::Segment;
  // Steps, a drain, an evaluation, and on: every pair of segments that can follow each other.
  for (const Segment segment :
       {Segment::kForward, Segment::kBackward, Segment::kUpdateForward, Segment::kBackward,
        Segment::kUpdateForward, Segment::kBackward, Segment::kUpdateOnly, Segment::kEvaluate,
        Segment::kForward, Segment::kBackward, Segment::kUpdateOnly}) {
    add_segment(segment);
  }
  if (!set.program(Segment::kBackwardEarly).ops.empty()) {
    // Accepted, redone and drained early updates, and back.
    for (const Segment segment :
         {Segment::kForward, Segment::kBackwardEarly, Segment::kRestForward,
          Segment::kBackwardEarly, Segment::kUpdateForward, Segment::kBackwardEarly,
          Segment::kRestForward, Segment::kBackward, Segment::kUpdateForward,
          Segment::kBackwardEarly, Segment::kRestOnly, Segment::kForward, Segment::kBackwardEarly,
          Segment::kUpdateOnly}) {
      add_segment(segment);
    }
  }
  find_lives();
}

void ProgramChecker::check_memory() {
  check_overlaps();
  for (const plan::Buffer& buffer : set_.buffers) {
    const Bytes peak = set_.peak[static_cast<int>(buffer.arena)];
    if (buffer.offset + buffer.bytes > peak) complain("ends beyond the arena", buffer.name);
    if (buffer.offset % 4096 != 0) complain("does not start on a page", buffer.name);
  }
  std::array<std::vector<std::int64_t>, 2> change;
  for (auto& of_arena : change) of_arena.assign(time_ + 1, 0);
  for (const Atom& atom : atoms_) {
    for (const auto& [from, to] : atom.alive) {
      change[atom.arena][from] += static_cast<std::int64_t>(atom.end - atom.begin);
      change[atom.arena][to + 1] -= static_cast<std::int64_t>(atom.end - atom.begin);
    }
  }
  for (int arena = 0; arena < 2; ++arena) {
    std::int64_t now = 0;
    for (const std::int64_t delta : change[arena]) {
      now += delta;
      most_alive_[arena] = std::max(most_alive_[arena], static_cast<Bytes>(now));
    }
    if (most_alive_[arena] > set_.peak[arena])
      complain("holds less than what is alive", str("arena ", arena));
  }
}

void ProgramChecker::check_edges() {
  using plan::Segment;
  for (const plan::Program& program : set_.programs) {
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      for (const int before : program.ops[i].after) {
        if (before < 0 || before >= static_cast<int>(i))
          complain("an edge points forward", plan::segment_name(program.segment));
      }
    }
  }
  check_hazards(Segment::kForward, Segment::kBackward);
  check_hazards(Segment::kUpdateForward, Segment::kBackward);
  check_hazards(Segment::kBackward, Segment::kUpdateForward);
  check_hazards(Segment::kBackward, Segment::kUpdateOnly);
  check_hazards(Segment::kEvaluate, Segment::kEvaluate);
  if (set_.program(Segment::kBackwardEarly).ops.empty()) return;
  for (const Segment forward : {Segment::kForward, Segment::kUpdateForward, Segment::kRestForward})
    check_hazards(forward, Segment::kBackwardEarly);
  check_hazards(Segment::kRestForward, Segment::kBackward);
  for (const Segment update :
       {Segment::kUpdateForward, Segment::kUpdateOnly, Segment::kRestForward, Segment::kRestOnly})
    check_hazards(Segment::kBackwardEarly, update);
}

void ProgramChecker::add_segment(plan::Segment segment) {
  if (cuts_.empty()) {
    cuts_.resize(set_.buffers.size());
    for (const plan::Program& program : set_.programs) {
      for (const plan::Op& op : program.ops) {
        for (const plan::Operand& operand : op.operands) {
          cuts_[operand.buffer].insert({operand.offset, operand.offset + operand.bytes});
        }
      }
    }
    for (std::size_t b = 0; b < cuts_.size(); ++b) make_atoms(static_cast<int>(b));
  }
  for (const plan::Op& op : set_.program(segment).ops) {
    for (std::size_t i = 0; i < op.operands.size(); ++i) {
      const Access access = effect(op, i, only_written_weight_);
      const Bytes start = set_.buffers[access.buffer].offset;
      for (const int atom : atoms_of_[access.buffer]) {
        if (atoms_[atom].begin < start + access.begin || atoms_[atom].end > start + access.end)
          continue;
        atoms_[atom].touches.push_back({time_,
                                        instance_,
                                        segment,
                                        access.reads,
                                        access.writes,
                                        {op.piece, op.first, op.count}});
      }
    }
    ++time_;
  }
  ++instance_;
}

void ProgramChecker::make_atoms(int buffer) {
  atoms_of_.resize(set_.buffers.size());
  const plan::Buffer& spec = set_.buffers[buffer];
  const std::vector<Bytes> cuts(cuts_[buffer].begin(), cuts_[buffer].end());
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    atoms_of_[buffer].push_back(static_cast<int>(atoms_.size()));
    Atom atom;
    atom.buffer = buffer;
    atom.arena = static_cast<int>(spec.arena);
    atom.begin = spec.offset + cuts[i];
    atom.end = spec.offset + cuts[i + 1];
    atoms_.push_back(atom);
  }
}

void ProgramChecker::find_lives() {
  for (Atom& atom : atoms_) {
    const plan::Buffer& buffer = set_.buffers[atom.buffer];
    if (buffer.name == "staging ring") check_ring(atom);
    if (buffer.resident) {
      atom.alive = {{0, time_ - 1}};
      continue;
    }
    const Touch* before = nullptr;
    for (const Touch& touch : atom.touches) {
      if (touch.reads && before == nullptr) complain("read before anything wrote it", buffer.name);
      // Merged touches of one op (a gradient in its input's place) read first.
      if (touch.reads && before != nullptr) {
        atom.alive.emplace_back(before->time, touch.time);
        if (before->instance != touch.instance) survives_.insert({before->segment, atom.buffer});
      } else {
        atom.alive.emplace_back(touch.time, touch.time);
      }
      before = &touch;
    }
    merge(atom.alive);
  }
}

void ProgramChecker::merge(std::vector<std::pair<int, int>>& intervals) {
  std::vector<std::pair<int, int>> merged;
  for (const auto& interval : intervals) {
    if (!merged.empty() && interval.first <= merged.back().second) {
      merged.back().second = std::max(merged.back().second, interval.second);
    } else {
      merged.push_back(interval);
    }
  }
  intervals = std::move(merged);
}

void ProgramChecker::check_ring(const Atom& atom) {
  std::array<std::int64_t, 3> content = {-1, -1, -1};
  for (const Touch& touch : atom.touches) {
    if (touch.reads && touch.content != content) {
      complain(str("a slot read for piece ", touch.content[0], " element ", touch.content[1],
                   " holds piece ", content[0], " element ", content[1]),
               plan::segment_name(touch.segment));
    }
    if (touch.writes) content = touch.content;
  }
}

void ProgramChecker::check_overlaps() {
  std::vector<const Atom*> sorted;
  for (const Atom& atom : atoms_) sorted.push_back(&atom);
  std::sort(sorted.begin(), sorted.end(), [](const Atom* a, const Atom* b) {
    return std::pair(a->arena, a->begin) < std::pair(b->arena, b->begin);
  });
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    for (std::size_t k = i + 1; k < sorted.size(); ++k) {
      const Atom &a = *sorted[i], &b = *sorted[k];
      if (b.arena != a.arena || b.begin >= a.end) break;
      if (a.buffer != b.buffer && meet(a.alive, b.alive)) {
        complain(str("shares memory with ", set_.buffers[b.buffer].name, " while both are alive"),
                 set_.buffers[a.buffer].name);
      }
    }
  }
}

bool ProgramChecker::meet(const std::vector<std::pair<int, int>>& a,
                          const std::vector<std::pair<int, int>>& b) {
  for (std::size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    if (a[i].first <= b[k].second && b[k].first <= a[i].second) return true;
    a[i].second < b[k].second ? ++i : ++k;
  }
  return false;
}

std::vector<ProgramChecker::Place> ProgramChecker::places(const plan::Op& op) const {
  std::vector<Place> result;
  for (const Access& access : effects(set_, op, only_written_weight_)) {
    if (access.buffer >= 0) {
      const plan::Buffer& buffer = set_.buffers[access.buffer];
      result.push_back({static_cast<int>(buffer.arena), buffer.offset + access.begin,
                        buffer.offset + access.end, access.writes});
    } else {
      result.push_back(
          {access.extent < 0 ? 2 : 3 + access.extent, access.begin, access.end, access.writes});
    }
  }
  return result;
}

bool ProgramChecker::conflict(const std::vector<Place>& a, const std::vector<Place>& b) {
  for (const Place& x : a) {
    for (const Place& y : b) {
      if (x.space == y.space && x.begin < y.end && y.begin < x.end && (x.writes || y.writes))
        return true;
    }
  }
  return false;
}

void ProgramChecker::check_hazards(plan::Segment first, plan::Segment second) {
  const auto& before = set_.program(first).ops;
  const auto& after = set_.program(second).ops;
  const std::size_t base = before.size(), total = base + after.size();
  if (total > kMostOps) return complain("too long for this checker", plan::segment_name(first));
  std::vector<std::bitset<kMostOps>> earlier(total);  // all ops that surely have ended
  std::vector<std::vector<Place>> touched;
  const auto wait = [&](std::size_t op, std::size_t for_op) {
    earlier[op] |= earlier[for_op], earlier[op].set(for_op);
  };
  // Without links the second segment starts when the first has ended: what is checked then is each
  // by itself.
  const auto& links = set_.links[static_cast<int>(first)][static_cast<int>(second)];
  for (std::size_t i = 0; i < total; ++i) {
    const plan::Op& op = i < base ? before[i] : after[i - base];
    for (const int edge : op.after) wait(i, static_cast<std::size_t>(edge) + (i < base ? 0 : base));
    for (const plan::Link& link : links) {
      if (i >= base && static_cast<std::size_t>(link.op) == i - base)
        wait(i, static_cast<std::size_t>(link.previous_op));
    }
    touched.push_back(places(op));
    for (std::size_t k = links.empty() && i >= base ? base : 0; k < i; ++k) {
      if (!earlier[i][k] && conflict(touched[k], touched[i])) {
        complain(str(plan::op_kind_name(op.kind), " ", i, " does not wait for ", k),
                 str(plan::segment_name(first), ", ", plan::segment_name(second)));
      }
    }
  }
}

}  // namespace zinf::testing
