// Commits: each is published after its writes are durable, the next step's writes wait for it, and
// the slot that holds it is not written before the next one. Seen from below, at the I/O engine.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <mutex>

#include "nvme/area_header.h"
#include "tests/step/random_case.h"
#include "tests/step/temp_folder.h"
#include "tests/step/watchdog.h"

namespace zinf {
namespace {

using testing::Case;
using testing::OutOfCore;
using testing::TempFolder;

// What happened, in order: writes to slots of state extents, syncs, commits.
struct Event {
  enum Kind { kWrite, kSync, kCommit } kind;
  std::int64_t what;  // slot, or version
  int slot = -1;
};

class Witness {
 public:
  explicit Witness(const plan::ProgramSet& set) {
    for (const plan::Extent& extent : set.extents) {
      if (extent.kind != plan::ExtentKind::kState) continue;
      for (int slot = 0; slot < extent.slots; ++slot) {
        ends_.push_back((ends_.empty() ? nvme::kAreaDataStart : ends_.back()) +
                        round_up(extent.bytes, 4096));
        slots_.push_back(extent.slots == 2 ? slot : -1);
      }
    }
  }
  void wrote(std::uint64_t offset) {
    const auto at = std::upper_bound(ends_.begin(), ends_.end(), offset) - ends_.begin();
    if (slots_[static_cast<std::size_t>(at)] >= 0)
      add({Event::kWrite, 0, slots_[static_cast<std::size_t>(at)]});
  }
  void add(Event event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
  }
  std::vector<Event> events() const { return events_; }

 private:
  std::vector<std::uint64_t> ends_;
  std::vector<int> slots_;
  std::mutex mutex_;
  std::vector<Event> events_;
};

class WitnessEngine final : public nvme::IoEngine {
 public:
  WitnessEngine(std::unique_ptr<nvme::IoEngine> inner, Witness& witness)
      : inner_(std::move(inner)), witness_(witness) {}
  std::string_view name() const override { return inner_->name(); }
  nvme::EngineLimits limits() const override { return inner_->limits(); }
  int add_file(int descriptor) override {
    const std::string path =
        std::filesystem::read_symlink(str("/proc/self/fd/", descriptor)).string();
    scratch_ = path.find("-scratch") != std::string::npos;
    return inner_->add_file(descriptor);
  }
  std::size_t submit(std::span<const nvme::IoBlock> blocks) override {
    const std::size_t taken = inner_->submit(blocks);
    for (std::size_t i = 0; i < taken && !scratch_; ++i) {
      if (blocks[i].op == nvme::IoOp::kWrite) witness_.wrote(blocks[i].offset);
      if (blocks[i].op == nvme::IoOp::kSync) witness_.add({Event::kSync, 0});
    }
    return taken;
  }
  std::size_t reap(std::span<nvme::IoCompletion> out, double timeout_seconds) override {
    return inner_->reap(out, timeout_seconds);
  }
  int in_flight() const override { return inner_->in_flight(); }
  void wake() override { inner_->wake(); }

 private:
  std::unique_ptr<nvme::IoEngine> inner_;
  Witness& witness_;
  bool scratch_ = false;
};

// A case on real files, with its first weights in place, under witness.
class Witnessed {
 public:
  Witnessed(Case& c, const std::string& folder)
      : programs_(plan::compile(c.input())),
        witness_(programs_),
        compute_(c.spec()),
        optimizer_(c.drawn.format, testing::hyper_for(c.drawn.format)) {
    testing::OutOfCoreOptions options;
    options.folder = folder;
    options.max_norm = c.max_norm;
    options.wrap_engine = [this](std::unique_ptr<nvme::IoEngine> inner) {
      return std::make_unique<WitnessEngine>(std::move(inner), witness_);
    };
    options.executor.commit = [this](std::int64_t, std::int64_t version, int slot) {
      witness_.add({Event::kCommit, version, slot});
    };
    engine_.emplace(c.input(), programs_, compute_, optimizer_, options);
    store_initial(c, *engine_);
    witness_.add({Event::kCommit, 0, 0});
  }
  OutOfCore& engine() { return *engine_; }
  std::vector<Event> events() const { return witness_.events(); }

 private:
  plan::ProgramSet programs_;
  Witness witness_;
  testing::FakeCompute compute_;
  optim::Optimizer optimizer_;
  std::optional<OutOfCore> engine_;
};

TEST(Commits, ACommittedSlotIsNotWrittenBeforeTheNextCommit) {
  const testing::Watchdog watchdog("commits");
  const TempFolder folder(testing::quick_parent());
  Case c = testing::plain_case(3);
  c.drawn.input.settings.commit_each_step = true;
  c.drawn.input.placement.pieces[1].weights = plan::Tier::kHost;  // some of the state in memory
  c.steps = 6;
  Witnessed run(c, folder.path());
  run_steps(c, run.engine(), 2);
  const std::vector<Event> events = run.events();
  std::int64_t version = -1;
  int committed = -1, writes = 0, syncs = 0, commits = 0;
  for (const Event& event : events) {
    if (event.kind == Event::kWrite && version >= 0) {
      ASSERT_NE(event.slot, committed) << "after commit " << version;
      ++writes;
      syncs = 0;
    }
    if (event.kind == Event::kSync) ++syncs;
    if (event.kind != Event::kCommit) continue;
    if (version >= 0) {
      EXPECT_EQ(syncs, 1) << "a commit is one sync after its last write";
      EXPECT_GT(writes, 0);
    }
    EXPECT_EQ(event.what, version + 1);
    version = event.what;
    committed = event.slot;
    writes = syncs = 0;
    ++commits;
  }
  EXPECT_EQ(commits, 7);
}

// Without commits in the program, writes leave the committed slot once and then stay in the other.
TEST(Commits, BetweenCommitsWritesGoInPlace) {
  const testing::Watchdog watchdog("in place");
  const TempFolder folder(testing::quick_parent());
  Case c = testing::plain_case(2);
  c.drawn.input.settings.commit_each_step = false;
  c.steps = 4;
  Witnessed run(c, folder.path());
  run_steps(c, run.engine());
  const std::vector<Event> events = run.events();
  bool loaded = false;
  for (const Event& event : events) {
    if (event.kind == Event::kCommit) loaded = true;
    const bool steady_write = event.kind == Event::kWrite && loaded;
    EXPECT_TRUE(!steady_write || event.slot == 1);
    EXPECT_FALSE(loaded && event.kind == Event::kSync);
  }
}

// A hold keeps the slot of its commit as it is: until it is released writes go in place, in the
// other slot, and nothing is committed. It costs no bit.
TEST(Commits, AHoldKeepsItsCommitUntilItIsReleased) {
  const testing::Watchdog watchdog("hold");
  const TempFolder folder(testing::quick_parent());
  Case c = testing::plain_case(3);
  c.drawn.input.settings.commit_each_step = true;
  c.steps = 8;
  Witnessed run(c, folder.path());
  step::Trainer& trainer = run.engine().trainer();
  const auto hold_and_release = [&](int step) {
    if (step + 1 == 3) trainer.hold_next_commit();
    if (step + 1 == 4) {
      EXPECT_TRUE(trainer.held());
    }
    if (step + 1 == 6) trainer.release();
  };
  EXPECT_EQ(run_steps(c, run.engine(), -1, {{}, hold_and_release}), run_twin(c));
  std::vector<std::int64_t> commits;
  int held_slot = -1, writes_while_held = 0, syncs_while_held = 0;
  for (const Event& event : run.events()) {
    if (event.kind == Event::kCommit) {
      commits.push_back(event.what);
      held_slot = event.what == 3 ? event.slot : -1;
    }
    if (held_slot < 0) continue;
    syncs_while_held += event.kind == Event::kSync;
    if (event.kind != Event::kWrite) continue;
    EXPECT_NE(event.slot, held_slot);
    ++writes_while_held;
  }
  EXPECT_EQ(commits, (std::vector<std::int64_t>{0, 1, 2, 3, 6, 7, 8}));
  EXPECT_GT(writes_while_held, 0);
  EXPECT_EQ(syncs_while_held, 1) << "that of the commit after the hold";
}

// States in memory: a commit writes each of them once, to its last padded page, and syncs once.
TEST(Commits, TheBytesOfACommitOfResidentStatesAreFixed) {
  const testing::Watchdog watchdog("write-through");
  const TempFolder folder(testing::quick_parent());
  Case c = testing::plain_case(3, 700'000);  // several transfers a state
  c.drawn.input.settings.commit_each_step = false;
  for (auto& piece : c.drawn.input.placement.pieces)
    piece = {plan::Tier::kHost, plan::Tier::kHost, plan::Tier::kHost};
  c.steps = 1;
  testing::FakeCompute compute(c.spec());
  const optim::Optimizer optimizer(c.drawn.format, testing::hyper_for(c.drawn.format));
  testing::OutOfCoreOptions options;
  options.folder = folder.path();
  options.max_norm = c.max_norm;
  OutOfCore engine(c.input(), plan::compile(c.input()), compute, optimizer, options);
  store_initial(c, engine);
  run_steps(c, engine);
  Bytes expected = 0;
  for (const model::PieceSpec& piece : c.spec().pieces) {
    for (std::size_t state = 0; state < (piece.trainable ? c.input().states.size() : 1); ++state)
      expected += round_up(c.input().states[state].bytes(piece.elements), plan::kPage);
  }
  const auto before = engine.tiers().counters().at(0).lane;
  engine.access().write_through(1, false);
  engine.tiers().store()->sync();
  const auto after = engine.tiers().counters().at(0).lane;
  EXPECT_EQ(after.bytes_written - before.bytes_written, expected);
  EXPECT_EQ(after.syncs - before.syncs, 1u);
  EXPECT_EQ(after.bytes_read, before.bytes_read);
  // And what was written is what is read back.
  const std::string state = engine.hashes().state;
  engine.access().restore(1, false);
  EXPECT_EQ(engine.hashes().state, state);
}

}  // namespace
}  // namespace zinf
