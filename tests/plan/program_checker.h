// Checks programs without the compiler's own bookkeeping: lifetimes and hazards are worked out
// again from what ops read and write (op_effects.h), over the orders in which segments follow each
// other.
#pragma once

#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/str.h"
#include "tests/plan/op_effects.h"

namespace zinf::testing {

class ProgramChecker {
 public:
  ProgramChecker(const plan::ProgramSet& set, bool only_written_weight);

  // What is wrong; empty when all is well.
  const std::vector<std::string>& problems() const { return problems_; }
  // Most bytes alive at one op.
  Bytes most_alive(plan::Arena arena) const { return most_alive_[static_cast<int>(arena)]; }
  // What a buffer holds at the end of a segment is read by a later one.
  bool survives(plan::Segment segment, int buffer) const {
    return survives_.count({segment, buffer}) != 0;
  }

  // Adds to problems() buffers that overlap while alive, and arenas smaller than what is alive.
  void check_memory();

  // Adds edges that point forward, and pairs of ops that touch the same bytes, one of them writing,
  // without order.
  void check_edges();

 private:
  struct Touch {
    int time;
    int instance;
    plan::Segment segment;
    bool reads, writes;
    std::array<std::int64_t, 3> content;  // piece and range: what a slot of the staging ring holds
  };
  struct Atom {  // a range of a buffer that every op touches wholly or not at all
    int buffer = -1;
    int arena = 0;
    Bytes begin = 0, end = 0;  // in the arena
    std::vector<Touch> touches;
    std::vector<std::pair<int, int>> alive;
  };

  void complain(const std::string& what, const std::string& where) {
    problems_.push_back(str(where, ": ", what));
  }

  void add_segment(plan::Segment segment);

  void make_atoms(int buffer);

  void find_lives();

  static void merge(std::vector<std::pair<int, int>>& intervals);

  // Whoever reads a slot of the ring finds what was put there for it.
  void check_ring(const Atom& atom);

  void check_overlaps();

  static bool meet(const std::vector<std::pair<int, int>>& a,
                   const std::vector<std::pair<int, int>>& b);

  struct Place {
    int space;
    Bytes begin, end;
    bool writes;
  };

  std::vector<Place> places(const plan::Op& op) const;

  static bool conflict(const std::vector<Place>& a, const std::vector<Place>& b);

  void check_hazards(plan::Segment first, plan::Segment second);

  const plan::ProgramSet& set_;
  bool only_written_weight_;
  int time_ = 0;
  int instance_ = 0;
  std::vector<std::set<Bytes>> cuts_;
  std::vector<Atom> atoms_;
  std::vector<std::vector<int>> atoms_of_;
  std::set<std::pair<plan::Segment, int>> survives_;
  std::array<Bytes, 2> most_alive_{};
  std::vector<std::string> problems_;
};

}  // namespace zinf::testing
