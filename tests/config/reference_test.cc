#include "engine/config/reference.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "engine/config/load.h"
#include "engine/config/options.h"

namespace zinf::config {
namespace {

// ZINF_UPDATE_DOCS=1 writes the page instead.
TEST(Reference, CommittedPageIsTheTables) {
  if (std::getenv("ZINF_UPDATE_DOCS")) std::ofstream("docs/config.md") << reference_markdown();
  std::ifstream in("docs/config.md");
  ASSERT_TRUE(in) << "run from the repository root";
  std::ostringstream page;
  page << in.rdbuf();
  EXPECT_EQ(page.str(), reference_markdown())
      << "ZINF_UPDATE_DOCS=1 config_reference_test rewrites docs/config.md";
}

TEST(Reference, HelpNamesEveryKeyWithEffect) {
  const std::string help = help_text();
  for (const Option& option : options())
    EXPECT_EQ(help.find("  " + option.key + ": ") != std::string::npos,
              option.effect == Effect::kUsed)
        << option.key;
}

TEST(Reference, DescribeTellsValueAndOrigin) {
  const std::vector<std::string> lines =
      describe(load_text("learning_rate: 1e-4\n", "/c/run.yaml").config);
  const auto has = [&](const std::string& text) {
    for (const std::string& line : lines)
      if (line == text) return true;
    return false;
  };
  EXPECT_TRUE(has("optimizer.params.lr = 1e-4 (/c/run.yaml:1: learning_rate)"));
  EXPECT_TRUE(has("optimizer.params.eps = 1e-8 (default)"));
  EXPECT_TRUE(has("step.group = auto (default)"));
  EXPECT_TRUE(has("checkpoint.grace = 25s (default)"));
}

void round_trip(const RunConfig& config) {
  const std::string text = resolved_yaml(config);
  const LoadResult again = load_text(text, "/elsewhere/config.yaml");
  EXPECT_EQ(again.config, config) << text;
  EXPECT_EQ(resolved_yaml(again.config).empty(), false);
  for (const Note& note : again.notes) EXPECT_NE(note.kind, Note::Kind::kReadAs) << note.text;
}

TEST(Reference, ResolvedConfigLoadsBackToTheSame) {
  round_trip(load("tests/config/data/full.yaml").config);
  round_trip(load("tests/config/data/ds_stage2.json").config);
  round_trip(load("tests/config/data/ds_stage3_offload.json").config);
  round_trip(load("tests/config/data/ds_auto.json").config);
  round_trip(
      load_text("{model: {type: mlp, width: 8, layers: 2}, data: {format: random, samples: 10}}",
                "/c/a.yaml")
          .config);
  round_trip(
      load_text("model: {path: \"a: b # c\"}\neval: {sample: \"x\\n\\ty \\u00e9 \\\\ \\\"\"}\n",
                "/c/a.yaml")
          .config);
}

TEST(Reference, DifferencesNameKeysAndBothValues) {
  const RunConfig before = load_text("{train: {steps: 5}, output_dir: /r}", "/c/a.yaml").config;
  const RunConfig after =
      load_text("{train: {steps: 9}, optimizer: {params: {lr: 1e-4}}, output_dir: /r}", "/c/b.yaml")
          .config;
  const std::vector<Difference> found = differences(before, after);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].key + " " + found[0].before + " " + found[0].after, "train.steps 5 9");
  EXPECT_EQ(found[1].key + " " + found[1].before + " " + found[1].after,
            "optimizer.params.lr 5e-5 1e-4");
  EXPECT_TRUE(differences(after, after).empty());
}

TEST(Reference, FullConfigDiffersFromTheDefaultsEverywhere) {
  const RunConfig full = load("tests/config/data/full.yaml").config;
  const RunConfig plain = load_text("train: {seed: 42}\n", "/c/a.yaml").config;
  for (const Option& option : options()) {
    if (!option.get || option.key.starts_with("model.") ||
        option.key.find("stage3_gather") != std::string::npos)
      continue;
    const bool other_kind = option.key == "train.epochs" || option.key == "data.eval_fraction" ||
                            option.key == "data.target" || option.key == "data.samples" ||
                            option.key == "data.token_width" || option.key == "train_batch_size" ||
                            option.key == "optimizer.params.momentum" ||
                            option.key == "optimizer.type" || option.key == "fp16.enabled" ||
                            option.key == "optimizer.params.adam_w_mode" ||
                            option.key.starts_with("scheduler.params.warmup_m") ||
                            option.key == "scheduler.params.warmup_ratio";
    EXPECT_EQ(option.get(full) == option.get(plain),
              other_kind && option.key != "scheduler.params.warmup_min_ratio")
        << option.key;
  }
}

}  // namespace
}  // namespace zinf::config
