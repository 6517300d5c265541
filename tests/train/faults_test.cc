// The whole trainer over a drive that misbehaves. Whatever the drive does, a run ends with the
// state of the run without faults or with an error that names the fault; and the same command, on a
// drive that is well again, goes on from the last commit to that very state.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/random.h"
#include "engine/base/str.h"
#include "engine/train/stored_run.h"
#include "engine/train/train.h"
#include "nvme/fault_engine.h"
#include "tests/step/temp_folder.h"
#include "tests/step/watchdog.h"

namespace zinf {
namespace {

using nvme::FaultControl;
using nvme::FaultOptions;

constexpr const char* kConfig = R"({
  model: MODEL,
  data: {format: random, samples: 512SEQUENCE},
  train: {steps: 4, stall_timeout: 2},
  memory: {device: 64MiB, host: 1GiB, nvme: [{path: FOLDER/swap, capacity: 256MiB}DRIVE]},
  placement: {weights: nvme, optimizer: nvme, gradients: PLACE},
  io: {block_size: 64KiB, depth: 8},
  train_micro_batch_size_per_gpu: 2, gradient_accumulation_steps: 2, gradient_clipping: 0.5,
  optimizer: {type: AdamW, params: {lr: 1e-3, weight_decay: 0.01}},
  export: {at_end: false}
})";

constexpr const char* kLlama = R"({
  "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 500, "hidden_size": 32,
  "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
  "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
  "tie_word_embeddings": true, "initializer_range": 0.02, "attention_bias": false, "mlp_bias": false
})";

// What is trained, by the number of the seed: two models; gradients in memory and one drive, or all
// on two drives.
struct Kind {
  bool llama = false;
  bool spill = false;
};

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  for (std::size_t at; (at = text.find(what)) != std::string::npos;)
    text.replace(at, what.size(), with);
  return text;
}

class FaultyTrainer : public ::testing::Test {
 protected:
  FaultyTrainer() : folder_("/var/tmp") { log::set_level(log::Level::kError); }
  ~FaultyTrainer() override { log::set_level(log::Level::kInfo); }

  // A fresh swap folder and run folder.
  void begin(const Kind& kind) {
    for (const char* part : {"swap", "swap2", "run", "model"}) {
      std::filesystem::remove_all(path(part));
      std::filesystem::create_directories(path(part));
    }
    std::ofstream(path("model/config.json")) << kLlama;
    std::string text = replaced(
        kConfig, "MODEL",
        kind.llama ? "{path: FOLDER/model, init: random}" : "{type: mlp, width: 96, layers: 3}");
    text = replaced(text, "SEQUENCE", kind.llama ? ", seq_len: 32" : "");
    // A fault on either of two drives.
    text = replaced(text, "DRIVE", kind.spill ? ", {path: FOLDER/swap2, capacity: 256MiB}" : "");
    text = replaced(text, "PLACE", kind.spill ? "nvme" : "host");
    std::ofstream(path("run.yaml")) << replaced(text, "FOLDER", folder_.path());
  }

  // Empty when the run ended well, else its error.
  std::string train(const std::shared_ptr<FaultControl>& faults) {
    train::TrainOptions options;
    options.json = true;
    if (faults) options.wrap_io = faults->wrapper();
    std::ostringstream out, talk;
    auto* const cout = std::cout.rdbuf(out.rdbuf());
    auto* const cerr = std::cerr.rdbuf(talk.rdbuf());
    std::string error;
    try {
      config::Overrides overrides;
      overrides.run_dir = path("run");
      const config::LoadResult loaded = config::load(path("run.yaml"), {}, overrides);
      EXPECT_EQ(train::train(loaded, options), 0);
    } catch (const Error& failure) {
      error = failure.what();
    }
    std::cout.rdbuf(cout);
    std::cerr.rdbuf(cerr);
    return error;
  }

  // Of the newest commit. A fault after the last commit leaves a finished run without a summary.
  std::string state_hash() {
    train::StoredRun run(path("run"));
    const checkpoint::Manifest& commit = run.manifest();
    EXPECT_EQ(commit.step, 4);
    return run.states().hashes(commit.version, commit.slot, commit.moments_are_zero).state;
  }

  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  testing::TempFolder folder_;
};

int seeds() {
  const char* text = std::getenv("ZINF_TEST_SEEDS");
  return text != nullptr ? std::max(1, std::atoi(text)) : 6;
}

FaultOptions faults_of(std::uint64_t seed, std::uint64_t blocks) {
  FaultOptions options{.seed = seed, .short_share = 0.05, .again_share = 0.02, .delay_share = 0.1};
  const std::uint64_t block = 1 + random_bits(seed, 1) % blocks;
  switch (seed % 6) {
    case 0:
      options.fail_block = block;
      break;
    case 1:
      options.flip_share = 2.0 / static_cast<double>(blocks);
      break;
    case 2:
      options.crash_block = block;
      options.track_unsynced = true;
      break;
    case 3:
      options.fail_block = block;
      options.error_number = ENOSPC;
      break;
    case 4:
      options.drop_share = 2.0 / static_cast<double>(blocks);
      break;
    default:
      break;  // only what can be repaired
  }
  return options;
}

TEST_F(FaultyTrainer, EndsWithTheSameStateOrNamesTheFaultAndKeepsItsCommit) {
  std::string whole[4];
  std::uint64_t blocks[4] = {};
  const auto kind_of = [](int seed) { return Kind{seed / 6 % 2 == 1, seed / 12 % 2 == 1}; };
  const auto index_of = [](const Kind& kind) { return 2 * kind.llama + kind.spill; };
  int stopped = 0, ended = 0;
  for (int seed = 0; seed < seeds(); ++seed) {
    const testing::Watchdog watchdog(str("the trainer over a faulty drive, seed ", seed));
    const Kind kind = kind_of(seed);
    std::string& expected = whole[index_of(kind)];
    if (expected.empty()) {
      begin(kind);
      const auto none = std::make_shared<FaultControl>(FaultOptions{});
      ASSERT_EQ(train(none), "");
      expected = state_hash();
      blocks[index_of(kind)] = none->blocks();
      ASSERT_FALSE(expected.empty());
    }
    begin(kind);
    const FaultOptions options =
        faults_of(static_cast<std::uint64_t>(seed), blocks[index_of(kind)]);
    const auto faults = std::make_shared<FaultControl>(options);
    const std::string error = train(faults);
    SCOPED_TRACE(str("seed ", seed, ", ", faults->injected(), " faults, ended with: ", error));
    if (error.empty()) {
      ++ended;
      EXPECT_EQ(state_hash(), expected);
      continue;
    }
    ++stopped;
    EXPECT_NE(error.find(path("swap")), std::string::npos);
    // Which request a fault meets depends on the machine's threads; a sync is of a whole file and
    // has no offset.
    EXPECT_TRUE(error.find(" at offset ") != std::string::npos || error.rfind("syncing ", 0) == 0);
    if (options.fail_block > 0) {
      EXPECT_NE(error.find(options.error_number == ENOSPC ? "ENOSPC" : "EIO"), std::string::npos);
    }
    if (options.track_unsynced) faults->forget_unsynced();
    EXPECT_EQ(train(nullptr), "");
    EXPECT_EQ(state_hash(), expected);
  }
  EXPECT_GT(stopped, 0);
  EXPECT_GT(ended, 0);
}

}  // namespace
}  // namespace zinf
