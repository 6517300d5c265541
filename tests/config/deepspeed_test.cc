// The DeepSpeed configs that people start from, the settings that have no effect, and field case
// BR-052.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/config/batch.h"
#include "engine/config/load.h"
#include "engine/config/options.h"

namespace zinf::config {
namespace {

LoadResult load_of(const std::string& text, const std::vector<std::string>& sets = {}) {
  return load_text(text, "/c/ds.json", sets);
}

std::string failure(const std::string& text, const std::vector<std::string>& sets = {}) {
  try {
    load_of(text, sets);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "no error";
}

int count(const LoadResult& result, const std::string& text) {
  return static_cast<int>(
      std::count_if(result.notes.begin(), result.notes.end(),
                    [&](const Note& note) { return note.text.find(text) != std::string::npos; }));
}

std::string all_notes(const LoadResult& result) {
  std::string out;
  for (const Note& note : result.notes) out += note.text + "\n";
  return out;
}

// Field case 005: one `false` is enough, and the key of the higher level wins.
TEST(DeepSpeed, PinMemoryFalsePinsNothing) {
  const auto zero = [](const std::string& part) {
    return "{\"zero_optimization\": {" + part + "}}";
  };
  EXPECT_TRUE(load_of("{}").config.memory.pin);
  const std::string yes = R"("offload_optimizer": {"device": "cpu", "pin_memory": true})";
  EXPECT_TRUE(load_of(zero(yes)).config.memory.pin);
  for (const std::string part : {R"("offload_optimizer": {"device": "cpu", "pin_memory": false})",
                                 R"("offload_param": {"device": "cpu", "pin_memory": false})",
                                 R"("cpu_offload_use_pin_memory": false)"}) {
    const LoadResult result = load_of(zero(part));
    EXPECT_FALSE(result.config.memory.pin) << part;
    EXPECT_EQ(count(result, "read as memory.pin: false"), 1) << all_notes(result);
    const LoadResult own = load_of(zero(part), {"memory.pin=true"});
    EXPECT_TRUE(own.config.memory.pin) << part;
    EXPECT_EQ(count(own, "(memory.pin at --set"), 1) << all_notes(own);
  }
  const std::string no = R"("offload_param": {"device": "cpu", "pin_memory": false})";
  EXPECT_FALSE(load_of(zero(yes + ", " + no)).config.memory.pin);
  EXPECT_FALSE(
      load_of(R"({"memory": {"pin": true}})", {"zero_optimization.offload_param.pin_memory=false"})
          .config.memory.pin);
  const std::string both =
      failure(R"({"memory": {"pin": true}, "zero_optimization": {)" + no + "}}");
  EXPECT_NE(both.find("offload_param.pin_memory = false contradicts memory.pin = true"),
            std::string::npos)
      << both;
  EXPECT_NE(failure(zero(R"("offload_param": {"pin_memory": 3})")).find("pin_memory"),
            std::string::npos);
}

TEST(DeepSpeed, Stage2WithBuckets) {
  const LoadResult result = load("tests/config/data/ds_stage2.json");
  const RunConfig& config = result.config;
  EXPECT_EQ(config.zero_stage, 2);
  EXPECT_EQ(config.precision, Precision::kBf16);
  EXPECT_EQ(config.gradient_clipping, 1.0);
  EXPECT_EQ(config.optimizer.type, OptimizerType::kAdamW);
  EXPECT_EQ(config.optimizer.betas, (std::array<double, 2>{0.9, 0.95}));
  EXPECT_EQ(config.optimizer.weight_decay, 0.1);
  EXPECT_EQ(config.scheduler.type, SchedulerType::kWarmupDecayLR);
  EXPECT_EQ(config.scheduler.warmup_num_steps, 40);
  EXPECT_EQ(config.scheduler.total_num_steps, 400);
  EXPECT_EQ(config.scheduler.warmup_type, WarmupType::kLog);
  EXPECT_EQ(resolve_batch(config, 2).total, 64);
  EXPECT_EQ(
      count(
          result,
          "no effect here: zero_optimization.{contiguous_gradients, overlap_comm, reduce_scatter, "
          "reduce_bucket_size, allgather_partitions, allgather_bucket_size} "
          "(buffers are sized and placed by the plan)"),
      1)
      << all_notes(result);
  EXPECT_EQ(count(result, "steps_per_print"), 1);
  EXPECT_EQ(count(result, "wall_clock_breakdown"), 1);
}

TEST(DeepSpeed, Stage3WithOffload) {
  const LoadResult result = load("tests/config/data/ds_stage3_offload.json");
  const RunConfig& config = result.config;
  EXPECT_EQ(config.zero_stage, 3);
  EXPECT_EQ(config.placement.optimizer, Tier::kNvme);
  EXPECT_EQ(config.placement.weights, Tier::kHost);
  EXPECT_EQ(config.placement.activations, Tier::kHost);
  EXPECT_EQ(config.placement.gradients, std::nullopt);
  ASSERT_EQ(config.memory.nvme.size(), 1u);
  EXPECT_EQ(config.memory.nvme[0].path, "/swap/nvme0");
  EXPECT_EQ(config.io.block_size, Bytes{1} << 20);
  EXPECT_EQ(config.io.depth, 32);
  EXPECT_EQ(config.io.threads, 2);
  EXPECT_TRUE(config.export_.at_kept_checkpoints);
  EXPECT_TRUE(config.optimizer.decoupled_decay());
  EXPECT_EQ(resolve_batch(config, 4).accumulation, 4);
  EXPECT_EQ(count(result,
                  "aio.thread_count: 2 (tests/config/data/ds_stage3_offload.json:43) read as "
                  "io.threads: 2"),
            1)
      << all_notes(result);
  EXPECT_EQ(count(result, "optimizer.type: Adam means AdamW"), 1);
  EXPECT_EQ(config.origin("placement.weights"),
            "tests/config/data/ds_stage3_offload.json:19: zero_optimization.offload_param.device");
}

TEST(DeepSpeed, EverythingAuto) {
  const LoadResult result = load("tests/config/data/ds_auto.json");
  const RunConfig& config = result.config;
  EXPECT_EQ(config.precision, std::nullopt);
  EXPECT_EQ(config.optimizer.lr, 5e-5);
  EXPECT_EQ(config.optimizer.weight_decay, 0.0);
  EXPECT_EQ(config.gradient_clipping, 1.0);
  EXPECT_EQ(config.batch, BatchConfig{});
  EXPECT_EQ(config.scheduler.warmup_num_steps, std::nullopt);
  EXPECT_EQ(config.scheduler.total_num_steps, std::nullopt);
  EXPECT_EQ(config.scheduler.warmup_max_lr, std::nullopt);
  EXPECT_EQ(config.placement.optimizer, Tier::kHost);
  EXPECT_EQ(config.origin("optimizer.params.lr"), "auto, tests/config/data/ds_auto.json:13");
}

TEST(DeepSpeed, FromAYamlConfig) {
  const LoadResult result = load_text(
      "deepspeed: tests/config/data/ds_auto.json\nlearning_rate: 1e-4\nbf16: true\n", "run.yaml");
  EXPECT_EQ(result.config.optimizer.lr, 1e-4);
  EXPECT_EQ(result.config.precision, Precision::kBf16);
  EXPECT_EQ(result.config.zero_stage, 3);
  try {
    load_text("deepspeed: tests/config/data/ds_stage2.json\nmax_grad_norm: 0.5\n", "run.yaml");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "tests/config/data/ds_stage2.json:6: gradient_clipping: 1.0 contradicts "
                 "max_grad_norm: 0.5 at run.yaml:2\n"
                 "  hint: keep one of the two");
  }
  EXPECT_EQ(load_of("{\"deepspeed\": {\"gradient_clipping\": 2}}").config.gradient_clipping, 2.0);
}

TEST(DeepSpeed, PlacementAutoTakesOffloadBack) {
  const std::string text =
      R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/n"}}})";
  EXPECT_EQ(load_of(text).config.placement.optimizer, Tier::kNvme);
  const LoadResult freed = load_of(text, {"placement=auto"});
  EXPECT_EQ(freed.config.placement.optimizer, std::nullopt);
  EXPECT_EQ(count(freed,
                  "zero_optimization.offload_optimizer.device (/c/ds.json:1) is taken back by "
                  "placement: auto "
                  "(--set placement=auto)"),
            1)
      << all_notes(freed);
  EXPECT_EQ(load_of(text, {"placement.optimizer=host"}).config.placement.optimizer, Tier::kHost);
  EXPECT_EQ(load_of(text, {"memory.nvme=[{path: /other}]"}).config.memory.nvme[0].path, "/other");
  EXPECT_EQ(load_of(R"({"zero_optimization": {"offload_param": {"device": "none"}}})")
                .config.placement.weights,
            Tier::kDevice);
}

TEST(DeepSpeed, OldAndOtherSpellings) {
  for (const char* name : {"thread_count", "intra_op_parallelism", "num_threads"})
    EXPECT_EQ(load_of(std::string("{\"aio\": {\"") + name + "\": 4}}").config.io.threads, 4)
        << name;
  EXPECT_EQ(load_of(R"({"zero_optimization": {"cpu_offload": true}})").config.placement.optimizer,
            Tier::kHost);
  EXPECT_EQ(load_of(R"({"zero_optimization": {"cpu_offload": false}})").config.placement.optimizer,
            std::nullopt);
  EXPECT_EQ(load_of(R"({"data_types": {"grad_accum_dtype": "bf16"}})").config.gradients.dtype,
            GradientDtype::kBf16);
  EXPECT_TRUE(
      load_of(R"({"zero_optimization": {"stage3_gather_fp16_weights_on_model_save": true}})")
          .config.export_.at_kept_checkpoints);
  EXPECT_EQ(load_of(R"({"zero_optimization": {"stage": "auto", "offload_param": null}})")
                .config.zero_stage,
            std::nullopt);
}

// The keys, and what the two precisions' `auto` come to beside each other.
TEST(DeepSpeed, Fp16) {
  const RunConfig config = load_of(R"({"fp16": {"enabled": true, "loss_scale_window": 100,
      "initial_scale_power": 8, "hysteresis": 1, "consecutive_hysteresis": true,
      "min_loss_scale": 2}})")
                               .config;
  EXPECT_EQ(config.precision, Precision::kFp16);
  EXPECT_EQ(config.fp16, (Fp16Config{0, 8, 100, 1, true, 2}));
  EXPECT_EQ(load_of(R"({"fp16": {"enabled": true}})").config.fp16,
            (Fp16Config{0, 16, 1000, 2, false, 1}));
  for (const char* text : {R"({"bf16": {"enabled": "auto"}, "fp16": {"enabled": true}})",
                           R"({"fp16": {"enabled": true}, "bf16": {"enabled": false}})"})
    EXPECT_EQ(load_of(text).config.precision, Precision::kFp16) << text;
  EXPECT_EQ(
      load_of(R"({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}})").config.precision,
      std::nullopt);
  EXPECT_EQ(load_of(R"({"fp16": {"enabled": "auto"}})").config.precision, Precision::kFp32);
  const LoadResult off = load_of(R"({"fp16": {"enabled": false, "loss_scale": 128}})");
  EXPECT_EQ(count(off, "no effect here: fp16.loss_scale (fp16 is off)"), 1) << all_notes(off);
  const LoadResult fixed =
      load_of(R"({"fp16": {"enabled": true, "loss_scale": 128, "hysteresis": 3}})");
  EXPECT_EQ(count(fixed, "no effect here: fp16.hysteresis (fp16.loss_scale is fixed)"), 1)
      << all_notes(fixed);
}

// BR-052: one verdict per combination.
TEST(DeepSpeed, Contradictions) {
  EXPECT_EQ(failure(R"({"zero_optimization": {"stage": 1, "offload_param": {"device": "cpu"}}})"),
            "/c/ds.json:1: zero_optimization.offload_param.device = cpu contradicts "
            "zero_optimization.stage = 1 at "
            "/c/ds.json:1: parameter offload needs stage 3\n"
            "  hint: set zero_optimization.stage to 3 or auto, or pin with placement.weights");
  EXPECT_EQ(
      failure(R"({"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}})"),
      "no error");
  EXPECT_EQ(failure(R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}})"),
            "/c/ds.json:1: zero_optimization.offload_param.device = nvme needs a drive, and none "
            "is given\n"
            "  hint: add nvme_path beside it, or memory.nvme: [{path: FOLDER}]");
  EXPECT_EQ(failure("placement: {gradients: nvme}"),
            "/c/ds.json:1: placement.gradients = nvme needs a drive, and none is given\n"
            "  hint: add memory.nvme: [{path: FOLDER}]");
  EXPECT_EQ(failure("{\"bf16\": {\"enabled\": true},\n \"fp16\": {\"enabled\": true}}"),
            "/c/ds.json:2: fp16.enabled = true contradicts bf16.enabled = true at /c/ds.json:1\n  "
            "hint: keep bf16");
  EXPECT_EQ(
      failure(R"({"fp16": {"enabled": true, "initial_scale_power": 4, "min_loss_scale": 32}})"),
      "/c/ds.json:1: fp16.min_loss_scale = 32 is more than the first scale, "
      "2^fp16.initial_scale_power = 16");
  EXPECT_EQ(failure(R"({"fp16": {"enabled": true}, "optimizer": {"master_weights": "split"}})"),
            "/c/ds.json:1: optimizer.master_weights = split contradicts fp16 weights, whose master "
            "is fp32\n  hint: leave master_weights at auto");
  EXPECT_EQ(failure(R"({"gradient_clipping": -1})"),
            "/c/ds.json:1: gradient_clipping: expected a number of at least 0, found '-1'");
  const LoadResult ratio =
      load_of(R"({"zero_optimization": {"offload_optimizer": {"device": "cpu", "ratio": 0.1}}})");
  EXPECT_EQ(count(ratio,
                  "no effect here: zero_optimization.offload_optimizer.ratio (the device pins all "
                  "optimizer state; "
                  "placement.optimizer: auto mixes tiers piece by piece)"),
            1)
      << all_notes(ratio);
  EXPECT_EQ(failure(R"({"zero_optimization": {"offload_optimizer": {"ratio": 1.1}}})"),
            "/c/ds.json:1: zero_optimization.offload_optimizer.ratio: expected a number from 0 to "
            "1, found '1.1'");
  EXPECT_EQ(failure("optimizer: {type: AdamW, params: {adam_w_mode: false}}"),
            "/c/ds.json:1: optimizer.params.adam_w_mode = false contradicts optimizer.type = AdamW "
            "(/c/ds.json:1)\n"
            "  hint: write optimizer.type: Adam for Adam with L2");
  EXPECT_EQ(failure("optimizer: {master_weights: split}"),
            "/c/ds.json:1: optimizer.master_weights = split contradicts fp32 weights "
            "(bf16.enabled: false, default)\n"
            "  hint: write bf16: {enabled: true}, or leave master_weights at auto");
  EXPECT_EQ(failure("memory: {nvme: [/a]}\nzero_optimization: {offload_optimizer: {device: nvme, "
                    "nvme_path: /b}}\n"),
            "/c/ds.json:2: zero_optimization.offload_optimizer.nvme_path = /b contradicts "
            "memory.nvme at /c/ds.json:1, "
            "which has no such path\n  hint: keep one of the two");
  EXPECT_EQ(
      failure("placement: {weights: host}\nzero_optimization: {offload_param: {device: none}}\n"),
      "/c/ds.json:2: zero_optimization.offload_param.device: none contradicts placement.weights: "
      "host at "
      "/c/ds.json:1\n  hint: keep one of the two");
  EXPECT_EQ(failure("model: {type: mlp, path: /m}"),
            "/c/ds.json:1: model.path = /m contradicts model.type = mlp at /c/ds.json:1\n"
            "  hint: an mlp has no folder; remove one of the two");
}

// BR-051.
TEST(DeepSpeed, WarmupAtTheEdges) {
  const std::string params =
      "scheduler: {type: WarmupDecayLR, params: {warmup_num_steps: 8, total_num_steps: 4}}\n";
  EXPECT_EQ(failure(params),
            "/c/ds.json:1: scheduler.params.warmup_num_steps = 8 is more than "
            "scheduler.params.total_num_steps = 4 at "
            "/c/ds.json:1: the peak would never be reached\n  hint: shorten the warm-up or "
            "lengthen the run");
  EXPECT_EQ(
      failure("train: {steps: 4}\nscheduler: {type: WarmupLR, params: {warmup_num_steps: 8}}\n")
          .substr(0, 102),
      "/c/ds.json:2: scheduler.params.warmup_num_steps = 8 is more than train.steps = 4 at "
      "/c/ds.json:1: the ");
  for (const char* steps : {"0", "1"})
    EXPECT_EQ(failure(std::string("scheduler: {type: WarmupLR, params: {warmup_num_steps: ") +
                      steps + "}}"),
              "no error");
  EXPECT_EQ(
      count(load_of("scheduler: WarmupLR"), "no warm-up (DeepSpeed's own default is 1000 steps)"),
      1);
  EXPECT_EQ(failure("scheduler: OneCycle"),
            "/c/ds.json:1: scheduler.type: expected constant, linear, cosine, WarmupLR, "
            "WarmupDecayLR or WarmupCosineLR, "
            "found 'OneCycle'");
}

TEST(DeepSpeed, AdamMeansAdamWUnlessSaidOtherwise) {
  EXPECT_TRUE(load_of("optimizer: {type: Adam}").config.optimizer.decoupled_decay());
  EXPECT_FALSE(load_of("optimizer: {type: Adam, params: {adam_w_mode: false}}")
                   .config.optimizer.decoupled_decay());
  EXPECT_TRUE(load_of("optimizer: {type: AdamW}").config.optimizer.decoupled_decay());
}

TEST(DeepSpeed, WhatWouldTrainAnotherModelIsRefused) {
  EXPECT_EQ(failure(R"({"progressive_layer_drop": {"enabled": true, "theta": 0.5}})"),
            "/c/ds.json:1: progressive_layer_drop: a section is refused: layer dropping is not "
            "supported");
  EXPECT_EQ(failure(R"({"progressive_layer_drop": {"enabled": false, "theta": 0.5}})"), "no error");
  EXPECT_EQ(
      failure(R"({"sparse_attention": {"mode": "fixed"}})"),
      "/c/ds.json:1: sparse_attention: a section is refused: sparse attention is not supported");
  EXPECT_EQ(failure(R"({"amp": {"enabled": true}})"),
            "/c/ds.json:1: amp.enabled: true is refused: write bf16: {enabled: true} instead");
  EXPECT_EQ(failure(R"({"amp": {"enabled": false}})"), "no error");
  EXPECT_EQ(
      failure(R"({"gradient_allreduce_op": "sum"})"),
      "/c/ds.json:1: gradient_allreduce_op: sum is refused: the loss is the mean over all ranks");
  EXPECT_EQ(failure(R"({"tensor_parallel": {"autotp_size": 4}})"),
            "/c/ds.json:1: tensor_parallel.autotp_size: 4 is refused: tensor parallelism is not "
            "supported");
}

TEST(DeepSpeed, ValuesWithoutEffectAreStillChecked) {
  EXPECT_EQ(failure(R"({"zero_optimization": {"reduce_bucket_size": "big"}})"),
            "/c/ds.json:1: zero_optimization.reduce_bucket_size: expected an integer of at least "
            "0, found 'big'");
  EXPECT_EQ(failure(R"({"optimizer": {"params": {"max_grad_norm": 1.0}}})"),
            "/c/ds.json:1: unknown key 'optimizer.params.max_grad_norm' (value '1.0'); it belongs "
            "in gradient_clipping");
}

TEST(Options, EveryOptionAndAliasHasOneMeaning) {
  std::vector<std::string> seen;
  for (const Option& option : options()) {
    seen.push_back(option.key);
    seen.insert(seen.end(), option.aliases.begin(), option.aliases.end());
    EXPECT_FALSE(option.effect == Effect::kUsed && option.help.empty()) << option.key;
    EXPECT_FALSE(option.effect != Effect::kUsed && option.reason.empty()) << option.key;
    EXPECT_FALSE(option.effect == Effect::kUsed && option.default_text.empty()) << option.key;
    EXPECT_EQ(find_option(option.key), &option) << option.key;
    for (const std::string& alias : option.aliases) EXPECT_EQ(find_option(alias), &option) << alias;
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end())
      << *std::adjacent_find(seen.begin(), seen.end());
}

}  // namespace
}  // namespace zinf::config
