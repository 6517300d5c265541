// Bits do not depend on what must not matter: instruction set, cut into ranges, threads, layout of
// the master.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/cpu_optim/piece.h"

namespace zinf::optim {
namespace {

// All instruction sets agree bit for bit with scalar: every length up to three vectors, around a
// quantum and a tile, from aligned and odd first elements.
TEST(Optimizer, InstructionSetsAgree) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t n = 0; n <= 67; ++n) lengths.push_back(n);
  for (const std::int64_t n :
       {255, 256, 257, 999, 1000, 1001, 1023, 1024, 1025, 2500, 4095, 4096, 4097})
    lengths.push_back(n);
  Pool pool(1);
  const Group group{1.0, 0.01};
  for (const Format& format : all_formats()) {
    for (std::int64_t length : lengths) {
      if (format.moments == StateDtype::kInt8)
        length = (length + kQuantum - 1) / kQuantum * kQuantum;  // whole quanta only
      const std::int64_t first = format.moments == StateDtype::kInt8 ? 256
                                 : length % 3 == 0                   ? 0
                                                                     : 253 + length;
      const std::int64_t all = first + length + 256;
      // Huge gradients would leave one code in a block of 8-bit moments; others get both kinds.
      const auto seed = static_cast<std::uint64_t>(length);
      const bool even = format.moments == StateDtype::kInt8 || length % 2 == 0;
      const std::vector<float> gradient =
          even ? normal_gradient(all, seed) : adversarial_gradient(all, seed);
      const GroupRange range{0, all, 0};
      Piece expected(format, all);
      expected.fill(4);
      Piece start = expected;
      for (const Isa isa : available_isas()) {
        Piece piece = start;
        const Optimizer optimizer(format, hyper_of(format), isa);
        for (int s = 1; s <= 3; ++s) {
          optimizer.update(pool, piece.view(first), gradient.data() + first, first, length,
                           {&range, 1}, {&group, 1}, scalars_of(s));
        }
        if (isa == Isa::kScalar) {
          expected = piece;
          ASSERT_EQ(length == 0, start.bytes() == piece.bytes());
        }
        ASSERT_EQ(expected.bytes(), piece.bytes()) << describe(format, isa) << " length " << length;
      }
    }
  }
}

// The cut into ranges, threads and instruction set are knobs of speed and memory alone.
TEST(Optimizer, RangesAndThreadsDoNotChangeBits) {
  constexpr std::int64_t kElements = 10240;
  const std::vector<Group> groups = {{1.0, 0.01}, {0.5, 0.0}};
  const std::vector<GroupRange> ranges = {
      {0, 700, 0}, {768, 4000, 1}, {4864, 4500, 0}, {9472, 100, 1}};
  for (const Format& format : all_formats()) {
    const bool whole_quanta = format.moments == StateDtype::kInt8;
    const Optimizer optimizer(format, hyper_of(format));
    Piece expected(format, kElements);
    expected.fill(6);
    const Piece start = expected;
    for (const std::int64_t cut :
         {kElements, std::int64_t{7}, std::int64_t{64}, std::int64_t{1000}, std::int64_t{4096}}) {
      for (const int threads : {1, 3, 4}) {
        const NumaNode node = usable_numa_nodes()[0];
        Pool pool(threads, threads < 4 ? std::vector{node} : std::vector{node, node});
        Piece piece = start;
        const std::int64_t size = whole_quanta ? (cut + 255) / 256 * 256 : cut;
        for (int s = 1; s <= 2; ++s) {
          const std::vector<float> gradient =
              normal_gradient(kElements, static_cast<std::uint64_t>(s));
          for (std::int64_t i = 0; i < kElements; i += size) {
            optimizer.update(pool, piece.view(i), gradient.data() + i, i,
                             std::min(size, kElements - i), ranges, groups, scalars_of(s));
          }
        }
        if (cut == kElements && threads == 1) expected = piece;
        ASSERT_EQ(expected.bytes(), piece.bytes())
            << describe(format, best_isa()) << " cut " << cut << " threads " << threads;
      }
    }
  }
}

// A split master is the fp32 master, bit for bit, over a run; so is its weight.
TEST(Optimizer, SplitEqualsFp32Master) {
  for (const Algorithm algorithm : {Algorithm::kAdamW, Algorithm::kAdam, Algorithm::kLion,
                                    Algorithm::kAdagrad, Algorithm::kSgd}) {
    for (const StateDtype moments : {StateDtype::kFp32, StateDtype::kBf16}) {
      const Format split{algorithm, WeightDtype::kBf16, MasterWeights::kSplit, moments};
      const Format full{algorithm, WeightDtype::kBf16, MasterWeights::kFp32, moments};
      const Format fp32{algorithm, WeightDtype::kFp32, MasterWeights::kFp32, moments};
      Piece a(split, 3000), b(full, 3000), c(fp32, 3000);
      a.fill(8);
      b.fill(8);
      c.fill(8);
      const Hyper hyper = hyper_of(split);
      for (int s = 1; s <= 200; ++s) {
        std::vector<float> gradient(3000);
        for (std::size_t i = 0; i < gradient.size(); ++i) {
          gradient[i] = static_cast<float>(random_normal(static_cast<std::uint64_t>(s), i));
        }
        step(Optimizer(split, hyper), a, gradient, scalars_of(s));
        step(Optimizer(full, hyper), b, gradient, scalars_of(s));
        step(Optimizer(fp32, hyper), c, gradient, scalars_of(s));
      }
      EXPECT_EQ(c.master(), a.master());
      EXPECT_EQ(c.master(), b.master());
      EXPECT_EQ(0, std::memcmp(a.state(0), b.state(0), 6000));
    }
  }
}

// A range that is kept holds its bytes, in every state; its first moments are zero where none were
// read; the ranges beside it are updated as if it were not there.
TEST(Optimizer, KeptRangesStayAsTheyAre) {
  constexpr std::int64_t kElements = 4096, kFirst = 1024, kEnd = 2724;
  const std::vector<Group> groups = {{1.0, 0.01}};
  const std::vector<GroupRange> updated = {
      {0, 1000, 0}, {kFirst, kEnd - kFirst, 0}, {2816, 1280, 0}};
  std::vector<GroupRange> kept = updated;
  kept[1].keep = true;
  const std::vector<float> gradient = normal_gradient(kElements, 5);
  Pool pool(2);
  for (const Format& format : all_formats()) {
    if (format.master == MasterWeights::kFp32 && format.weight != WeightDtype::kFp32)
      continue;  // refused: such a weight is not read
    const Optimizer optimizer(format, hyper_of(format));
    for (const bool first_step : {false, true}) {
      Piece start(format, kElements);
      start.fill(6);
      Piece all = start, some = start;
      StepScalars scalars = scalars_of(1);
      scalars.moments_are_zero = first_step;
      const auto update = [&](Piece& piece, const std::vector<GroupRange>& ranges) {
        optimizer.update(pool, piece.view(0), gradient.data(), 0, kElements, ranges, groups,
                         scalars);
      };
      update(all, updated);
      update(some, kept);
      for (std::size_t s = 0; s < some.specs().size(); ++s) {
        const StateSpec& spec = some.specs()[s];
        for (Bytes i = 0; i < spec.bytes(kElements); ++i) {
          const bool inside = i >= spec.bytes(kFirst) && i < spec.bytes(2816);
          const std::byte zero{0};
          const std::byte expected = !inside                        ? all.state(s)[i]
                                     : first_step && spec.is_moment ? zero
                                                                    : start.state(s)[i];
          ASSERT_EQ(expected, some.state(s)[i])
              << describe(format, best_isa()) << " " << spec.name << " byte " << i;
        }
      }
    }
  }
}

// Nothing is written outside the range.
TEST(Optimizer, LeavesTheNeighboursAlone) {
  for (const Format& format : all_formats()) {
    Piece piece(format, 4096);
    piece.fill(2);
    const Piece before = piece;
    const std::vector<float> gradient(4096, 0.5f);
    const GroupRange range{0, 4096, 0};
    const Group group{};
    Pool pool(1);
    Optimizer(format, hyper_of(format))
        .update(pool, piece.view(1024), gradient.data(), 1024, 512, {&range, 1}, {&group, 1},
                scalars_of(1));
    for (std::size_t s = 0; s < piece.specs().size(); ++s) {
      const Bytes from = piece.specs()[s].bytes(1024), to = piece.specs()[s].bytes(1536);
      for (Bytes i = 0; i < piece.specs()[s].bytes(4096); ++i) {
        if (i < from || i >= to) {
          ASSERT_EQ(before.bytes()[s][i + Piece::kGuard], piece.state(s)[i])
              << describe(format, best_isa());
        }
      }
    }
    piece.expect_guards(describe(format, best_isa()));
  }
}

// 64-bit counts: a range beyond 2^31 elements of its piece, with its own random bits.
TEST(Optimizer, CountsBeyond31Bits) {
  const Format format{Algorithm::kAdamW, WeightDtype::kBf16, MasterWeights::kBf16Sr};
  const Optimizer optimizer(format, {});
  constexpr std::int64_t kFar = (std::int64_t{1} << 31) + 256;
  const GroupRange range{0, kFar + 4096, 0};
  const Group group{};
  Pool pool(1);
  const std::vector<float> gradient(256, 0.1f);
  Piece near(format, 256), far(format, 256);
  near.fill(1);
  far.fill(1);
  EXPECT_EQ(256, optimizer.update(pool, near.view(), gradient.data(), 256, 256, {&range, 1},
                                  {&group, 1}, scalars_of(1)));
  EXPECT_EQ(256, optimizer.update(pool, far.view(), gradient.data(), kFar, 256, {&range, 1},
                                  {&group, 1}, scalars_of(1)));
  EXPECT_NE(near.bytes(), far.bytes());
  EXPECT_EQ(Bytes{8589934848}, schema({})[0].bytes((std::int64_t{1} << 31) + 64));
}

}  // namespace
}  // namespace zinf::optim
