// The comparison with the twin has teeth: a program from which one needed edge is taken gives other
// bits (or an error) when the op that should be waited for is slow. Not built for the thread
// sanitizer, which rightly objects.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/plan/program_checker.h"
#include "tests/step/random_case.h"
#include "tests/step/temp_folder.h"
#include "tests/step/watchdog.h"

namespace zinf {
namespace {

using plan::Segment;
using testing::Case;
using testing::Draw;
using testing::Outcome;
using testing::OutOfCoreOptions;
using testing::TempFolder;

struct Planted {
  plan::ProgramSet programs;
  Segment slow_segment = Segment::kBackward;
  int slow_op = -1;  // nobody waits for it any more
};

bool unordered(const plan::ProgramSet& set, const Case& c) {
  testing::ProgramChecker checker(set, testing::weight_is_only_written(c.input().states));
  checker.check_edges();
  return !checker.problems().empty();
}

// Takes one edge that no other path replaces; slow_op -1: none found.
Planted without_an_edge(const Case& c, Draw& draw) {
  const plan::ProgramSet good = plan::compile(c.input());
  for (int attempt = 0; attempt < 20; ++attempt) {
    const Segment segment = draw.coin() ? Segment::kBackward : Segment::kUpdateForward;
    Planted planted{good, segment, -1};
    std::vector<plan::Op>& ops = planted.programs.programs[static_cast<int>(segment)].ops;
    plan::Op& op = ops[draw.below(static_cast<int>(ops.size()))];
    if (op.after.empty()) continue;
    const int edge = draw.below(static_cast<int>(op.after.size()));
    const int before = op.after[edge];
    // Lanes with one thread, and copies of one direction, keep their order by themselves.
    if (ops[before].lane == op.lane) continue;
    op.after.erase(op.after.begin() + edge);
    if (!unordered(planted.programs, c)) continue;
    planted.slow_op = before;
    return planted;
  }
  return {good, Segment::kBackward, -1};
}

// What the run gives when the op is slow; nullopt: it stopped with an error.
std::optional<Outcome> run_planted(const Case& c, const Planted& planted,
                                   const std::string& folder) {
  OutOfCoreOptions options;
  options.folder = folder;
  const plan::Op slow = planted.programs.program(planted.slow_segment).ops[planted.slow_op];
  options.executor.perturb = [&](const plan::Op& op, Segment segment) {
    const bool it = segment == planted.slow_segment && op.kind == slow.kind &&
                    op.piece == slow.piece && op.first == slow.first &&
                    op.micro_batch == slow.micro_batch && op.stage == slow.stage;
    if (it) std::this_thread::sleep_for(std::chrono::milliseconds(3));
  };
  try {
    return run_out_of_core(c, options, planted.programs);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

TEST(PlantedFaults, AMissingEdgeIsSeen) {
  const testing::Watchdog watchdog("planted faults");
  const TempFolder folder(testing::quick_parent());
  int planted_faults = 0, seen = 0;
  for (int seed = 0; seed < 60 && planted_faults < 24 && seen < 6; ++seed) {
    Draw draw(static_cast<std::uint64_t>(seed) + 1000);
    Case c = testing::draw_case(draw);
    c.drawn.input.settings.overlap = true;
    const Planted planted = without_an_edge(c, draw);
    if (planted.slow_op < 0) continue;
    ++planted_faults;
    const std::optional<Outcome> found = run_planted(c, planted, folder.path());
    seen += !found || !(*found == run_twin(c));
  }
  EXPECT_GT(planted_faults, 0);
  EXPECT_GT(seen, 0) << "of " << planted_faults;
}

// Without poison and without a slow op the same programs mostly go unnoticed, so both are worth
// their trouble; with the program whole, a slow op changes nothing.
TEST(PlantedFaults, AWholeProgramDoesNotMindASlowOp) {
  const testing::Watchdog watchdog("slow ops");
  const TempFolder folder(testing::quick_parent());
  for (int seed = 0; seed < 6; ++seed) {
    Draw draw(static_cast<std::uint64_t>(seed) + 1000);
    Case c = testing::draw_case(draw);
    c.drawn.input.settings.overlap = true;
    Planted planted{plan::compile(c.input()), Segment::kBackward, 0};
    planted.slow_op =
        draw.below(static_cast<int>(planted.programs.program(Segment::kBackward).ops.size()));
    const std::optional<Outcome> found = run_planted(c, planted, folder.path());
    ASSERT_TRUE(found);
    EXPECT_EQ(*found, run_twin(c)) << "seed " << seed;
  }
}

// A buffer moved onto another one.
TEST(PlantedFaults, ASharedBufferIsSeen) {
  const testing::Watchdog watchdog("shared buffers");
  const TempFolder folder(testing::quick_parent());
  int seen = 0, planted = 0;
  for (int seed = 0; seed < 40 && seen < 4; ++seed) {
    Draw draw(static_cast<std::uint64_t>(seed) + 2000);
    const Case c = testing::draw_case(draw);
    plan::ProgramSet programs = plan::compile(c.input());
    const int moved = draw.below(static_cast<int>(programs.buffers.size()));
    const int onto = draw.below(static_cast<int>(programs.buffers.size()));
    plan::Buffer& buffer = programs.buffers[moved];
    if (moved == onto || buffer.arena != programs.buffers[onto].arena) continue;
    if (programs.buffers[onto].offset + buffer.bytes >
        programs.peak[static_cast<int>(buffer.arena)])
      continue;
    buffer.offset = programs.buffers[onto].offset;
    testing::ProgramChecker checker(programs, testing::weight_is_only_written(c.input().states));
    checker.check_memory();
    if (checker.problems().empty()) continue;
    ++planted;
    OutOfCoreOptions options;
    options.folder = folder.path();
    try {
      seen += !(run_out_of_core(c, options, programs) == run_twin(c));
    } catch (const std::exception&) {
      ++seen;
    }
  }
  EXPECT_GT(seen, 0) << "of " << planted;
}

}  // namespace
}  // namespace zinf
