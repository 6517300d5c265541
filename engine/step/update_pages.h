// Which checksums an update takes in passing: of the states that its own read brought from NVMe and
// of those that its own write takes back. Such a read is not verified and such a write not hashed
// by the I/O lanes: every byte is summed where it is in cache.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <vector>

#include "cpu_optim/pages.h"
#include "engine/plan/program.h"
#include "engine/step/op_runner.h"
#include "swap/tiers.h"

namespace zinf::step {

class UpdatePages {
 public:
  // Everything outlives this object. enabled = false leaves all to the I/O lanes.
  UpdatePages(const plan::ProgramSet& programs, swap::Tiers& tiers, const OpRunner& runner,
              bool enabled);

  // An operand of a read or write whose pages an update sums, as its state `state`.
  struct Match {
    int update = -1;  // op of the same program; -1: none, the I/O lane looks at the pages
    int state = -1;
  };
  const Match& match(plan::Segment segment, int op, std::size_t operand) const;

  // What the update is to sum. nullopt: nothing of it is on NVMe.
  std::optional<optim::UpdatePages> request(plan::Segment segment, int op,
                                            const SegmentArgs& args) const;
  // After the update: throws where a page that it has read was damaged.
  void verify(plan::Segment segment, int op, const SegmentArgs& args,
              const optim::UpdatePages& pages) const;

 private:
  using Ranges = std::array<plan::ExtentRange, optim::kMaxStates>;  // extent -1: none
  struct OfProgram {
    std::vector<std::vector<Match>> matches;  // per op, per operand; empty: none
    std::vector<std::optional<Ranges>> read;  // per op: of an update's states
    std::vector<std::optional<Ranges>> written;
  };
  void match_reads(const plan::Program& program, int update, OfProgram& of) const;
  void match_writes(const plan::Program& program, int update, OfProgram& of) const;
  const OfProgram& of(plan::Segment segment) const {
    return programs_[static_cast<std::size_t>(segment)];
  }

  const plan::ProgramSet& set_;
  swap::Tiers& tiers_;
  const OpRunner& runner_;
  std::vector<OfProgram> programs_;
};

}  // namespace zinf::step
