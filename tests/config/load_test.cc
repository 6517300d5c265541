#include "engine/config/load.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "engine/base/error.h"
#include "engine/config/reference.h"

namespace zinf::config {
namespace {

namespace fs = std::filesystem;

LoadResult load_of(const std::string& text, const std::vector<std::string>& sets = {},
                   const Overrides& overrides = {}) {
  return load_text(text, "/c/run.yaml", sets, overrides);
}

std::string failure(const std::string& text, const std::vector<std::string>& sets = {},
                    const Overrides& overrides = {}) {
  try {
    load_of(text, sets, overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "no error";
}

bool has_note(const LoadResult& result, const std::string& text) {
  return std::any_of(result.notes.begin(), result.notes.end(),
                     [&](const Note& note) { return note.text == text; });
}

TEST(Load, DefaultsAreTheContracts) {
  const RunConfig config = load_of("model: {path: /m}\n").config;
  EXPECT_EQ(config.model.path, "/m");
  EXPECT_TRUE(config.data.packing);
  EXPECT_FALSE(config.data.train_on_prompt);
  EXPECT_EQ(config.train.dropout, 0.0);
  EXPECT_EQ(config.optimizer.type, OptimizerType::kAdamW);
  EXPECT_EQ(config.optimizer.lr, 5e-5);
  EXPECT_EQ(config.optimizer.weight_decay, 0.0);
  EXPECT_EQ(config.gradient_clipping, 0.0);
  EXPECT_EQ(config.precision, Precision::kFp32);
  EXPECT_EQ(config.checkpoint.keep, 1);
  EXPECT_EQ(config.checkpoint.slots, 2);
  EXPECT_EQ(config.checkpoint.grace, 25.0);
  EXPECT_EQ(config.zero_stage, std::nullopt);
  EXPECT_EQ(config.output_dir, "/c/runs/run");
  EXPECT_EQ(config.origins.config_name, "run");
  EXPECT_EQ(config.origin("optimizer.params.lr"), "default");
  EXPECT_EQ(config.origin("model.path"), "/c/run.yaml:1");
}

TEST(Load, AutoIsAcceptedEverywhere) {
  for (const char* key :
       {"train.steps", "memory.host", "step.group", "checkpoint.every", "data.seq_len", "io.engine",
        "optimizer.params.betas", "train.seed", "placement.weights", "data.train", "output_dir",
        "zero_optimization.stage", "gradients.dtype", "memory.nvme", "fp16.enabled", "placement"}) {
    const RunConfig config = load_of("model: {path: /m}\n", {std::string(key) + "=auto"}).config;
    EXPECT_EQ(config, load_of("model: {path: /m}\n").config) << key;
  }
  EXPECT_EQ(load_of("gradient_clipping: auto\n").config.gradient_clipping, 1.0);
  EXPECT_EQ(load_of("gradient_clipping: auto\n").config.origin("gradient_clipping"),
            "auto, /c/run.yaml:1");
  EXPECT_EQ(load_of("bf16: auto\n").config.precision, std::nullopt);
  EXPECT_EQ(load_of("train: {dropout: config}\n").config.train.dropout, std::nullopt);
}

// What a table model, or made-up data, does not look at is said, each key once; the defaults that a
// resolved config states are not.
TEST(Load, DataKeysWithoutEffectAreNamed) {
  const LoadResult result = load_of(
      "model: {type: mlp, width: 8, layers: 1}\n"
      "data: {format: random, train: x.csv, eval: y.csv, target: foo, token_width: 16, seq_len: "
      "99}\n"
      "eval: {sample: hello}\n");
  std::string notes;
  for (const Note& note : result.notes) notes += note.text + "\n";
  for (const char* key : {"data.train", "data.eval", "data.target", "data.token_width",
                          "data.seq_len", "eval.sample"}) {
    const std::size_t at = notes.find(key);
    ASSERT_NE(at, std::string::npos) << key << " in " << notes;
    EXPECT_EQ(notes.find(key, at + 1), std::string::npos) << key << " in " << notes;
  }
  const LoadResult plain = load_of(
      "model: {type: mlp, width: 8, layers: 1}\n"
      "data: {format: csv, train: x.csv, target: foo}\n");
  for (const Note& note : plain.notes) EXPECT_NE(note.kind, Note::Kind::kNoEffect) << note.text;
}

TEST(Load, UnknownKeysNameLineValueAndNearestKey) {
  EXPECT_EQ(
      failure("train: {steps: 1}\ngradient_cliping: 1\n"),
      "/c/run.yaml:2: unknown key 'gradient_cliping' (value '1'); nearest key: gradient_clipping");
  EXPECT_EQ(failure("optimizer:\n  type: AdamW\n  params:\n    betaz: [0.9, 0.95]\n"),
            "/c/run.yaml:4: unknown key 'optimizer.params.betaz' (value a list); nearest key: "
            "optimizer.params.betas");
  EXPECT_EQ(
      failure("stage: 2\n"),
      "/c/run.yaml:1: unknown key 'stage' (value '2'); it belongs in zero_optimization.stage");
  EXPECT_EQ(failure("data:\n  steps: 5\n"),
            "/c/run.yaml:2: unknown key 'data.steps' (value '5'); it belongs in train.steps");
  EXPECT_EQ(failure("qwertzuiop: 5\n"),
            "/c/run.yaml:1: unknown key 'qwertzuiop' (value '5')\n  hint: docs/config.md lists "
            "every key");
  EXPECT_EQ(failure("datasets: [{path: x}]\n"),
            "/c/run.yaml:1: unknown key 'datasets' (value a list); it belongs in data.train");
  EXPECT_EQ(
      failure("memory:\n  nvme:\n    - {path: /x, capacty: 1GiB}\n"),
      "/c/run.yaml:3: memory.nvme: unknown key 'capacty' (value '1GiB'); nearest key: capacity");
  EXPECT_EQ(failure("train: 5\n"),
            "/c/run.yaml:1: train: expected a section with keys such as steps, epochs, seed, "
            "dropout, found '5'");
}

TEST(Load, EveryMistakeIsListed) {
  EXPECT_EQ(failure("train:\n  stepz: 1\n  seed: x\nfoo_bar_baz: 1\n"),
            "/c/run.yaml:2: unknown key 'train.stepz' (value '1'); nearest key: train.steps\n"
            "/c/run.yaml:3: train.seed: expected an integer of at least 0, found 'x'\n"
            "/c/run.yaml:4: unknown key 'foo_bar_baz' (value '1')\n  hint: docs/config.md lists "
            "every key");
}

TEST(Load, ValuesAreCheckedForTypeAndRange) {
  const std::string at = "/c/run.yaml:1: ";
  EXPECT_EQ(failure("train: {steps: 1.5}"),
            at + "train.steps: expected an integer of at least 1, found '1.5'");
  EXPECT_EQ(failure("train: {steps: 010}"),
            at + "train.steps: expected an integer of at least 1, found '010'");
  EXPECT_EQ(failure("train: {steps: 1e-3}"),
            at + "train.steps: expected an integer of at least 1, found '1e-3'");
  EXPECT_EQ(load_of("train: {steps: 5e8}").config.train.steps, 500000000);
  EXPECT_EQ(failure("gradient_clipping: -1"),
            at + "gradient_clipping: expected a number of at least 0, found '-1'");
  EXPECT_EQ(failure("data: {packing: maybe}"),
            at + "data.packing: expected true or false, found 'maybe'");
  EXPECT_EQ(failure("memory: {host: 4 gigs}"),
            at + "memory.host: expected a size such as 4GiB of at least 1MiB, found '4 gigs'");
  EXPECT_EQ(failure("memory: {host: 4}"),
            at + "memory.host: expected a size such as 4GiB of at least 1MiB, found '4', "
                 "which is in bytes: write 4GiB or the like");
  EXPECT_EQ(failure("checkpoint: {grace: soon}"),
            at + "checkpoint.grace: expected a duration such as 10m of at least 0s, found 'soon'");
  EXPECT_EQ(failure("checkpoint: {every: 0}"), at + "checkpoint.every: expected a number of steps "
                                                    "or a duration such as 10m above 0, found '0'");
  EXPECT_EQ(failure("placement: {weights: gup}"),
            at + "placement.weights: expected device, host or nvme, found 'gup'; nearest: gpu");
  EXPECT_EQ(failure("optimizer: {params: {betas: [0.9]}}"),
            at + "optimizer.params.betas: expected a list of two numbers of at least 0 and below "
                 "1, found 1 values");
  EXPECT_EQ(failure("optimizer: {params: {betas: [0.9, 1.0]}}"),
            at + "optimizer.params.betas: expected a list of two numbers of at least 0 and below "
                 "1, found '1.0'");
  EXPECT_EQ(failure("optimizer: OneBitAdam"),
            at + "optimizer.type: expected AdamW, Adam, Lion, Adagrad or SGD, found 'OneBitAdam'");
  EXPECT_EQ(
      failure("train: {dropout: 1}"),
      at + "train.dropout: expected a number of at least 0 and below 1, or config, found '1'");
  EXPECT_EQ(failure("memory: {nvme: [{capacity: 1GiB}]}"), at + "memory.nvme: path is missing");
  EXPECT_EQ(failure("memory: {nvme: [/a, /a/]}"), at + "memory.nvme: path /a is given twice");
}

TEST(Load, CadenceIsStepsOrTime) {
  EXPECT_EQ(load_of("checkpoint: {every: 100}").config.checkpoint.every,
            (Cadence{100, std::nullopt}));
  EXPECT_EQ(load_of("checkpoint: {every: 10m}").config.checkpoint.every,
            (Cadence{std::nullopt, 600.0}));
}

TEST(Load, WholeFilesThatAreNoConfig) {
  EXPECT_EQ(failure(""),
            "/c/run.yaml:1: the file is empty; expected keys such as model, data and train\n"
            "  hint: docs/config.md lists every key; configs/ has ready ones");
  EXPECT_EQ(failure("# nothing\n"), failure(""));
  EXPECT_EQ(failure("- a\n- b\n"),
            "/c/run.yaml:1: expected keys such as model, data and train at the top, found a list");
  EXPECT_EQ(
      failure("steps:5\n"),
      "/c/run.yaml:1: expected keys such as model, data and train at the top, found 'steps:5'\n"
      "  hint: a key is followed by ': ', with the blank");
  EXPECT_EQ(failure("train:\n\tsteps: 1\n"),
            "/c/run.yaml:2: a tab in the indentation; YAML allows only spaces\n"
            "  hint: replace the tab by spaces");
  EXPECT_EQ(
      failure("train: {seed: 1}\ntrain: {seed: 2}\n"),
      "/c/run.yaml:2: duplicate key 'train': first given in line 1\n  hint: keep one of the two");
}

TEST(Load, FilesThatCannotBeRead) {
  const auto what = [](const std::string& path) {
    try {
      load(path);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(what("/nonexistent/x.yaml"),
            "cannot read config file '/nonexistent/x.yaml': No such file or directory\n"
            "  hint: check the path and its permissions");
  EXPECT_EQ(what("/tmp"),
            "cannot read config file '/tmp': it is a folder\n  hint: give a YAML or JSON file");
  EXPECT_EQ(failure("a_b: 1\ndeepspeed: none/ds.json\n"),
            "cannot read config file '/c/none/ds.json' (deepspeed at /c/run.yaml:2): No such file "
            "or directory\n"
            "  hint: check the path and its permissions");
}

TEST(Load, AliasesAreReadAndSaid) {
  const LoadResult result = load_of(
      "base_model: org/name\nsequence_len: 128\nmicro_batch_size: 2\nnum_epochs: 3\nlearning_rate: "
      "1e-4\n"
      "max_grad_norm: 0.5\nwarmup_ratio: 0.1\nsample_packing: false\nval_set_size: "
      "0.1\ngradient_checkpointing: true\n");
  const RunConfig& config = result.config;
  EXPECT_EQ(config.model.path, "org/name");
  EXPECT_EQ(config.data.seq_len, 128);
  EXPECT_EQ(config.batch.micro, 2);
  EXPECT_EQ(config.train.epochs, 3.0);
  EXPECT_EQ(config.optimizer.lr, 1e-4);
  EXPECT_EQ(config.gradient_clipping, 0.5);
  EXPECT_EQ(config.scheduler.warmup_ratio, 0.1);
  EXPECT_FALSE(config.data.packing);
  EXPECT_EQ(config.data.eval_fraction, 0.1);
  EXPECT_EQ(config.step.recompute, true);
  EXPECT_EQ(std::count_if(result.notes.begin(), result.notes.end(),
                          [](const Note& note) { return note.kind == Note::Kind::kReadAs; }),
            10);
  EXPECT_TRUE(
      has_note(result, "learning_rate: 1e-4 (/c/run.yaml:5) read as optimizer.params.lr: 1e-4"));
  EXPECT_EQ(config.origin("optimizer.params.lr"), "/c/run.yaml:5: learning_rate");
  const RunConfig others =
      load_of(
          "{model_name_or_path: org/b, cutoff_len: 64, per_device_train_batch_size: 3, "
          "num_train_epochs: 2}")
          .config;
  EXPECT_EQ(others.model.path, "org/b");
  EXPECT_EQ(others.data.seq_len, 64);
  EXPECT_EQ(others.batch.micro, 3);
  EXPECT_EQ(others.train.epochs, 2.0);
}

TEST(Load, TwoNamesOfOneKeyMustAgree) {
  EXPECT_EQ(
      failure("learning_rate: 1e-4\noptimizer: {params: {lr: 1e-5}}\n"),
      "/c/run.yaml:2: optimizer.params.lr: 1e-5 contradicts learning_rate: 1e-4 at /c/run.yaml:1\n"
      "  hint: keep one of the two");
  EXPECT_EQ(load_of("learning_rate: 1e-4\noptimizer: {params: {lr: 0.0001}}\n").config.optimizer.lr,
            1e-4);
  EXPECT_EQ(load_of("learning_rate: 1e-4\noptimizer: {params: {lr: auto}}\n").config.optimizer.lr,
            1e-4);
  EXPECT_EQ(failure("train:\n  steps: 5\n  epochs: 1\n"),
            "/c/run.yaml:3: train.epochs (1) contradicts train.steps (5) at /c/run.yaml:2\n  hint: "
            "give one of the two");
}

TEST(Load, SetWinsOverFilesAndTheCommandLineOverSet) {
  const std::vector<std::string> sets = {"train.steps=5", "optimizer.params.lr=1e-3",
                                         "train.steps=7",
                                         "optimizer={type: SGD, params: {momentum: 0.9}}"};
  const RunConfig config = load_of("train: {epochs: 2}\nlearning_rate: 1e-4\n", sets).config;
  EXPECT_EQ(config.train.steps, 7);
  EXPECT_EQ(config.train.epochs, std::nullopt);
  EXPECT_EQ(config.optimizer.lr, 1e-3);
  EXPECT_EQ(config.optimizer.type, OptimizerType::kSgd);
  EXPECT_EQ(config.optimizer.momentum, 0.9);
  EXPECT_EQ(config.origin("train.steps"), "--set train.steps=7");
  const RunConfig last = load_of("train: {steps: 1}\n", {"train.steps=5"}, {9, "/r/x"}).config;
  EXPECT_EQ(last.train.steps, 9);
  EXPECT_EQ(last.origin("train.steps"), "--steps 9");
  EXPECT_EQ(last.output_dir, "/r/x");
  EXPECT_EQ(load_of("train: {seed: 1}\n", {}, {std::nullopt, "x"}).config.output_dir,
            (fs::current_path() / "x").string());
}

TEST(Load, SetMistakesNameTheirText) {
  EXPECT_EQ(failure("train: {seed: 1}\n", {"train.stepz=5"}),
            "--set train.stepz=5: unknown key 'train.stepz' (value '5'); nearest key: train.steps");
  EXPECT_EQ(failure("train: {seed: 1}\n", {"train.steps"}),
            "--set train.steps: expected KEY=VALUE\n  hint: for example --set train.steps=100");
  EXPECT_EQ(failure("train: {seed: 1}\n", {"train.steps=x"}),
            "--set train.steps=x: train.steps: expected an integer of at least 1, found 'x'");
  EXPECT_EQ(failure("train: {seed: 1}\n", {}, {0, std::nullopt}),
            "--steps 0: train.steps: expected an integer of at least 1, found '0'");
}

TEST(Load, RelativePathsAreRelativeToTheirFile) {
  const RunConfig config =
      load_of(
          "model: {path: ./m}\ndata: {train: [a.txt, ../b.txt, /c.txt]}\noutput_dir: out/\n"
          "memory: {nvme: [swap]}\n")
          .config;
  EXPECT_EQ(config.model.path, "/c/m");
  EXPECT_EQ(config.data.train, (std::vector<std::string>{"/c/a.txt", "/b.txt", "/c.txt"}));
  EXPECT_EQ(config.output_dir, "/c/out");
  EXPECT_EQ(config.memory.nvme[0].path, "/c/swap");
  EXPECT_EQ(load_of("model: {path: HuggingFaceTB/SmolLM2-135M}\n").config.model.path,
            "HuggingFaceTB/SmolLM2-135M");
}

TEST(Load, WhatTrainingNeeds) {
  const auto what = [](const std::string& text) {
    try {
      const RunConfig config = load_of(text).config;
      require_model(config);
      require_data(config);
    } catch (const Error& error) {
      return std::string(error.what()).substr(0, std::string(error.what()).find('\n'));
    }
    return std::string("no error");
  };
  EXPECT_EQ(what("train: {steps: 1}"),
            "model.path is missing: expected a Hugging Face folder or a Hub id");
  EXPECT_EQ(what("model: {type: mlp, width: 8}"),
            "model.layers is missing: model.type: mlp needs width and layers");
  EXPECT_EQ(what("model: {path: /m}"),
            "data.train is missing: expected a file, a pattern or a list of them");
  EXPECT_EQ(what("{model: {type: mlp, d: 8, layers: 2}, data: {format: random}}"),
            "train.steps is missing: random data has no end");
  EXPECT_EQ(
      what("{model: {type: mlp, d: 8, layers: 2}, data: {format: random}, train: {steps: 3}}"),
      "no error");
}

TEST(Load, ConfigFileOnDisk) {
  char folder[] = "/tmp/config-load-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const fs::path base = folder;
  fs::create_directories(base / "sub");
  std::ofstream(base / "run.yaml") << "deepspeed: sub/ds.json\nmodel: {path: org/name}\n";
  std::ofstream(base / "sub/ds.json")
      << "{\"zero_optimization\": {\"stage\": 3,\n \"offload_param\": {\"device\": \"nvme\", "
         "\"nvme_path\": \"swap\"}}}";
  const RunConfig config = load((base / "run.yaml").string()).config;
  EXPECT_EQ(config.memory.nvme[0].path, (base / "sub/swap").string());
  EXPECT_EQ(config.origin("placement.weights"),
            "sub/ds.json:2: zero_optimization.offload_param.device");
  EXPECT_EQ(config.model.path, "org/name");
  fs::create_directories(base / "org/name");
  EXPECT_EQ(load((base / "run.yaml").string()).config.model.path, (base / "org/name").string());
  fs::remove_all(base);
}

}  // namespace
}  // namespace zinf::config
