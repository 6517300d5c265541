// Programs judged by a checker that shares nothing with the compiler (program_checker.h): buffers
// alive at once never overlap, the arenas hold what is alive, edges point backwards and cover every
// hazard, also across segments.
#include <gtest/gtest.h>

#include "tests/plan/program_checker.h"
#include "tests/plan/random_input.h"

namespace zinf {
namespace {

using testing::Draw;
using testing::ProgramChecker;
using testing::RandomInput;

std::string first_of(const std::vector<std::string>& problems) {
  return problems.empty() ? "" : str(problems.size(), " problems, the first: ", problems[0]);
}

TEST(Programs, MemoryIsSharedOnlyByWhatIsNotAliveAtOnce) {
  Bytes alive = 0, arena = 0;
  for (int seed = 0; seed < 300; ++seed) {
    Draw draw(static_cast<std::uint64_t>(seed));
    const RandomInput drawn = testing::draw_input(draw);
    const plan::ProgramSet set = compile(drawn.input);
    ProgramChecker checker(set, testing::weight_is_only_written(drawn.input.states));
    checker.check_memory();
    ASSERT_EQ(first_of(checker.problems()), "") << "seed " << seed;
    alive += checker.most_alive(plan::Arena::kDevice) + checker.most_alive(plan::Arena::kHost);
    arena += set.peak[0] + set.peak[1];
  }
  // First fit wastes little: what is alive at the worst moment nearly fills the arenas.
  EXPECT_GE(static_cast<double>(alive), 0.8 * static_cast<double>(arena));
}

TEST(Programs, EdgesPointBackwardsAndCoverEveryHazard) {
  for (int seed = 0; seed < 120; ++seed) {
    Draw draw(static_cast<std::uint64_t>(seed));
    RandomInput drawn = testing::draw_input(draw);
    drawn.input.settings.overlap = true;
    const plan::ProgramSet set = compile(drawn.input);
    ProgramChecker checker(set, testing::weight_is_only_written(drawn.input.states));
    checker.check_edges();
    ASSERT_EQ(first_of(checker.problems()), "") << "seed " << seed;
  }
}

// The checkers can fail.
TEST(Programs, CheckersSeePlantedFaults) {
  int overlaps = 0, hazards = 0, links = 0, sharing = 0, linked = 0;
  for (int seed = 0; seed < 40; ++seed) {
    Draw draw(static_cast<std::uint64_t>(seed));
    RandomInput drawn = testing::draw_input(draw);
    drawn.input.settings.overlap = true;
    const bool only_written = testing::weight_is_only_written(drawn.input.states);
    const plan::ProgramSet good = compile(drawn.input);
    {
      plan::ProgramSet set = good;  // one buffer in another's place
      const int moved = draw.below(static_cast<int>(set.buffers.size())),
                to = draw.below(static_cast<int>(set.buffers.size()));
      if (set.buffers[moved].arena == set.buffers[to].arena &&
          set.buffers[moved].offset != set.buffers[to].offset) {
        ++sharing;
        set.buffers[moved].offset = set.buffers[to].offset;
        ProgramChecker checker(set, only_written);
        checker.check_memory();
        overlaps += !checker.problems().empty();
      }
    }
    {
      plan::ProgramSet set = good;  // one op that waits for nothing
      auto& ops = set.programs[static_cast<int>(plan::Segment::kBackward)].ops;
      ops[ops.size() - 1 - static_cast<std::size_t>(draw.below(3))].after.clear();
      ProgramChecker checker(set, only_written);
      checker.check_edges();
      hazards += !checker.problems().empty();
    }
    {
      plan::ProgramSet set = good;  // one edge across a border less
      auto& crossing = set.links[static_cast<int>(plan::Segment::kBackward)]
                                [static_cast<int>(plan::Segment::kUpdateForward)];
      if (crossing.size() < 2) continue;
      ++linked;
      crossing.resize(1);
      ProgramChecker checker(set, only_written);
      checker.check_edges();
      links += !checker.problems().empty();
    }
  }
  EXPECT_GT(overlaps, sharing / 2);  // two short-lived buffers may well share
  EXPECT_EQ(hazards, 40);
  EXPECT_GT(links, linked / 2);  // others may cover for those that went
}

TEST(Programs, WithoutOverlapEveryOpWaitsForTheOneBefore) {
  Draw draw(5);
  RandomInput drawn = testing::draw_input(draw);
  drawn.input.settings.overlap = false;
  const plan::ProgramSet set = compile(drawn.input);
  for (const plan::Program& program : set.programs) {
    for (std::size_t i = 1; i < program.ops.size(); ++i) {
      ASSERT_FALSE(program.ops[i].after.empty());
      ASSERT_EQ(program.ops[i].after.back(), static_cast<int>(i) - 1);
    }
  }
}

// Every state has its extent, in an order that does not depend on the placement: any placement can
// go on with it.
TEST(Programs, StateExtentsDoNotDependOnPlacement) {
  for (int seed = 0; seed < 50; ++seed) {
    Draw draw(static_cast<std::uint64_t>(seed));
    RandomInput drawn = testing::draw_input(draw);
    const plan::ProgramSet one = compile(drawn.input);
    for (plan::PiecePlacement& placement : drawn.input.placement.pieces)
      placement = {draw.tier(), draw.tier(), draw.tier()};
    drawn.input.placement.activations = draw.tier();
    drawn.input.settings.group = 1;
    const plan::ProgramSet other = compile(drawn.input);
    std::size_t states = 0;
    for (const plan::Extent& extent : one.extents)
      states += extent.kind == plan::ExtentKind::kState;
    for (std::size_t e = 0; e < states; ++e) {
      ASSERT_EQ(one.extents[e].kind, plan::ExtentKind::kState);
      ASSERT_EQ(other.extents[e].kind, plan::ExtentKind::kState);
      ASSERT_EQ(std::pair(one.extents[e].piece, one.extents[e].state),
                std::pair(other.extents[e].piece, other.extents[e].state));
      ASSERT_EQ(one.extents[e].bytes, other.extents[e].bytes);
      ASSERT_EQ(one.extents[e].slots, other.extents[e].slots);
    }
  }
}

// A commit comes last, reads everything that is written before it, and there is one in each update
// segment.
TEST(Programs, CommitClosesEveryUpdate) {
  Draw draw(3);
  RandomInput drawn = testing::draw_input(draw);
  drawn.input.settings.commit_each_step = true;
  const plan::ProgramSet set = compile(drawn.input);
  for (const plan::Program& program : set.programs) {
    if (program.ops.empty()) continue;
    const bool updates = plan::ends_step(program.segment);
    int commits = 0;
    for (const plan::Op& op : program.ops) commits += op.kind == plan::OpKind::kCommit;
    EXPECT_EQ(commits, updates ? 1 : 0);
    if (!updates) continue;
    EXPECT_EQ(program.ops.back().kind, plan::OpKind::kCommit);
  }
}

// What a peak is made of adds up to it, and the gaps between buffers are small beside it.
TEST(Programs, PeaksAreAccountedForByClass) {
  for (int seed = 0; seed < 40; ++seed) {
    Draw draw(static_cast<std::uint64_t>(seed) + 900);
    const RandomInput drawn = testing::draw_input(draw);
    const plan::ProgramSet set = compile(drawn.input);
    for (int arena = 0; arena < 2; ++arena) {
      Bytes sum = 0;
      for (const auto& [name, bytes] : set.at_peak[arena]) sum += bytes;
      EXPECT_EQ(sum, set.peak[arena]) << "seed " << seed;
    }
    const auto gaps = set.at_peak[0].find("gaps");
    if (gaps != set.at_peak[0].end()) {
      EXPECT_LT(gaps->second, set.peak[0] / 2) << "seed " << seed;
    }
  }
}

// What candidates are judged by is the program that runs, without what the judging can do without.
TEST(Programs, CandidatesAreJudgedByTheProgramsThatRun) {
  int left_out = 0;
  for (int seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(static_cast<std::uint64_t>(seed));
    const RandomInput drawn = testing::draw_input(draw);
    const plan::ProgramSet whole = compile(drawn.input);
    Bytes nvme = 0;
    for (const plan::Extent& extent : whole.extents)
      nvme += round_up(extent.bytes, plan::kPage) * static_cast<Bytes>(extent.slots);
    const plan::Sizes sized = sizes(drawn.input);
    ASSERT_EQ(sized.device, whole.peak[0]);
    ASSERT_EQ(sized.host, whole.peak[1]);
    ASSERT_EQ(sized.nvme, nvme);
    for (const plan::Cycle cycle : {plan::Cycle::kPlain, plan::Cycle::kEarly}) {
      if (cycle == plan::Cycle::kEarly && drawn.input.settings.early_updates == 0) continue;
      const plan::ProgramSet part = compile_cycle(drawn.input, cycle);
      for (std::size_t i = 0; i < whole.buffers.size(); ++i)
        ASSERT_EQ(part.buffers[i].offset, whole.buffers[i].offset);
      for (int segment = 0; segment < plan::kSegments; ++segment) {
        const std::vector<plan::Op>&ops = part.programs[segment].ops,
              &all = whole.programs[segment].ops;
        if (ops.empty()) {
          left_out += !all.empty();
          continue;
        }
        ASSERT_EQ(ops.size(), all.size());
        for (std::size_t op = 0; op < ops.size(); ++op) ASSERT_EQ(ops[op].after, all[op].after);
      }
      const auto run = steady(cycle);
      const auto& links = part.links[static_cast<int>(run.backward)][static_cast<int>(run.forward)];
      const auto& expected =
          whole.links[static_cast<int>(run.backward)][static_cast<int>(run.forward)];
      ASSERT_EQ(links.size(), expected.size());
      for (std::size_t i = 0; i < links.size(); ++i) {
        ASSERT_EQ(links[i].op, expected[i].op);
        ASSERT_EQ(links[i].previous_op, expected[i].previous_op);
      }
    }
  }
  EXPECT_GE(left_out, 600);  // at least draining and evaluation
}

}  // namespace
}  // namespace zinf
