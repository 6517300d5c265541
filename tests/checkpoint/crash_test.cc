// Power losses at seeded random blocks of real programs on real files, with a drive that forgets
// what was not synced: every restart finds a whole commit that is the last published one or later,
// goes on from it, and the end has the bits of a run that nobody disturbed.
#include <gtest/gtest.h>

#include <cstdlib>

#include "engine/checkpoint/kept.h"
#include "nvme/fault_engine.h"
#include "tests/step/random_case.h"
#include "tests/step/temp_folder.h"
#include "tests/step/watchdog.h"

namespace zinf {
namespace {

using checkpoint::Manifest;
using checkpoint::ManifestFolder;
using testing::Case;
using testing::Draw;
using testing::OutOfCore;
using testing::TempFolder;

int crashes() {
  const char* text = std::getenv("ZINF_CRASHES");
  return text != nullptr ? std::max(1, std::atoi(text)) : 300;
}

// One process's life: from the newest commit until the end, or until the machine dies.
struct Life {
  std::int64_t resumed = 0;    // from this step
  std::int64_t published = 0;  // newest commit when it ended
  std::uint64_t blocks = 0;
  bool crashed = false;
  std::string state;  // when it reached the end
};

class Machine {
 public:
  Machine(Case& c, bool in_program, std::string folder)
      : c_(c), in_program_(in_program), folder_(std::move(folder)), manifests_(folder_) {
    c_.drawn.input.settings.commit_each_step = in_program;
    programs_ = plan::compile(c_.input());
    for (const plan::Extent& extent : programs_.extents)
      extents_ += extent.kind == plan::ExtentKind::kState;
  }

  // hold_at: after this step's commit nothing is committed for two steps, as under a hold.
  Life live(std::uint64_t crash_block, std::uint64_t seed, std::int64_t hold_at) {
    const auto faults = std::make_shared<nvme::FaultControl>(
        nvme::FaultOptions{.seed = seed, .crash_block = crash_block, .track_unsynced = true});
    Life life;
    try {
      go(life, *faults, hold_at);
    } catch (const Error&) {
      life.crashed = true;
    }
    life.published = newest().step;
    life.blocks = faults->blocks();
    if (life.crashed) faults->forget_unsynced();
    return life;
  }

 private:
  Manifest newest() const { return manifests_.find().newest.value_or(Manifest{}); }

  void publish(OutOfCore& engine, std::int64_t version, int slot, bool zero) {
    Manifest manifest;
    manifest.step = manifest.version = version;
    manifest.slot = slot;
    manifest.moments_are_zero = zero;
    manifests_.publish(manifest, engine.tiers().save_pages(slot, extents_));
  }

  void commit(OutOfCore& engine) {
    step::Trainer& trainer = engine.trainer();
    engine.access().write_through(trainer.slot(), trainer.moments_are_zero());
    engine.tiers().store()->sync();
    publish(engine, trainer.version(), trainer.slot(), trainer.moments_are_zero());
    trainer.committed();
  }

  void go(Life& life, nvme::FaultControl& faults, std::int64_t hold_at) {
    testing::FakeCompute compute(c_.spec());
    const optim::Optimizer optimizer(c_.drawn.format, testing::hyper_for(c_.drawn.format));
    testing::OutOfCoreOptions options;
    options.folder = folder_;
    options.max_norm = c_.max_norm;
    options.wrap_engine = faults.wrapper();
    options.poison = false;
    const ManifestFolder::Found found = manifests_.find();
    if (found.newest) {
      life.resumed = found.newest->step;
      options.open_mode = nvme::OpenMode::kReopen;
      options.version = found.newest->version;
      options.slot = found.newest->slot;
      options.moments_are_zero = found.newest->moments_are_zero;
    }
    OutOfCore* running = nullptr;
    options.executor.commit = [&](std::int64_t, std::int64_t version, int slot) {
      publish(*running, version, slot, false);
    };
    OutOfCore engine(c_.input(), programs_, compute, optimizer, options);
    running = &engine;
    if (found.newest) {
      engine.tiers().load_pages(options.slot, extents_, manifests_.pages(*found.newest),
                                "the newest");
      engine.access().restore(options.slot, options.moments_are_zero);
    } else {
      store_initial(c_, engine);
      commit(engine);
    }
    const std::vector<data::StepBatch> batches = batches_of(c_);
    step::Trainer& trainer = engine.trainer();
    for (std::int64_t step = life.resumed + 1; step <= c_.steps; ++step) {
      trainer.gradients(batches[static_cast<std::size_t>(step - 1)]);
      trainer.update(testing::kLr);
      if (in_program_) {
        if (step == hold_at) trainer.hold_next_commit();
        if (step == hold_at + 2) trainer.release();
      } else if (step % 2 == 0) {
        trainer.drain();
        commit(engine);
      }
    }
    trainer.drain();
    life.state = engine.hashes().state;
  }

  Case& c_;
  bool in_program_;
  std::string folder_;
  ManifestFolder manifests_;
  plan::ProgramSet programs_;
  int extents_ = 0;
};

TEST(Crashes, EveryRestartGoesOnFromTheLastCommit) {
  const testing::Watchdog watchdog("crashes", std::chrono::seconds(7000));
  int done = 0, inside_steps = 0, forgotten_steps = 0;
  for (std::uint64_t round = 0; done < crashes(); ++round) {
    SCOPED_TRACE(round);
    const TempFolder folder(testing::quick_parent());
    Draw draw(round + 9000);
    Case c = testing::plain_case(2);
    c.steps = 5;
    const bool in_program = draw.coin();
    if (!in_program) {  // some of the state lives in memory
      for (auto& piece : c.drawn.input.placement.pieces)
        piece = {draw.tier(), draw.tier(), plan::Tier::kHost};
    }
    const std::int64_t hold_at = draw.coin() ? 1 + draw.below(3) : 100;
    Machine run(c, in_program, folder.path());
    // How many blocks a life has, so that crashes fall anywhere in it.
    std::uint64_t blocks = 0;
    {
      const TempFolder whole(testing::quick_parent());
      Case same = testing::plain_case(2);
      same.steps = c.steps;
      same.drawn.input.placement = c.drawn.input.placement;
      const Life life = Machine(same, in_program, whole.path()).live(0, round, hold_at);
      ASSERT_FALSE(life.crashed);
      ASSERT_EQ(life.state, run_twin(c).state);
      blocks = life.blocks;
    }
    std::int64_t committed = 0;
    for (int life_number = 0;; ++life_number) {
      ASSERT_LT(life_number, 100) << "no progress";
      const bool undisturbed = life_number >= 6;
      const std::uint64_t at =
          undisturbed ? 0 : 1 + static_cast<std::uint64_t>(draw.below(static_cast<int>(blocks)));
      const Life life =
          run.live(at, round * 100 + static_cast<std::uint64_t>(life_number), hold_at);
      ASSERT_FALSE(HasFatalFailure());
      ASSERT_EQ(life.resumed, committed);
      ASSERT_GE(life.published, committed);
      committed = life.published;
      if (!life.crashed) {
        ASSERT_EQ(life.state, run_twin(c).state);
        break;
      }
      ++done;
      inside_steps += life.published > life.resumed;
      forgotten_steps += life.published == life.resumed;
    }
  }
  EXPECT_GT(inside_steps, 0);
  EXPECT_GT(forgotten_steps, 0);
}

}  // namespace
}  // namespace zinf
