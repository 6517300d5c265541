// Combinations (field case BR-052): each is supported, refused, or said to have no effect.
#include <cmath>

#include "engine/base/str.h"
#include "engine/config/resolve.h"
#include "engine/config/text.h"
#include "engine/config/value.h"

namespace zinf::config {

namespace {

class Checker {
 public:
  Checker(const Chosen& chosen, RunConfig& config, Collected& collected)
      : chosen_(chosen), config_(config), collected_(collected) {}

  void run() {
    precision();
    offload_stage();
    offload_drives();
    pinning();
    optimizer();
    optimizer_parameters();
    scheduler();
    scheduler_parameters();
    model_and_data();
    others();
  }

 private:
  const Setting* find(const std::string& key) const {
    const auto found = chosen_.find(key);
    return found == chosen_.end() ? nullptr : &found->second;
  }
  // Given, and not as "auto".
  const Setting* given(const std::string& key) const {
    const Setting* setting = find(key);
    return setting && !setting->is_auto() ? setting : nullptr;
  }
  static std::string say(const Setting& setting) {
    return str(setting.path, " = ", clipped(setting.written), " at ", setting.where);
  }
  void refuse(const Setting& setting, const std::string& text, const std::string& hint = "") {
    collected_.problems.add(setting.where,
                            str(setting.path, " = ", clipped(setting.written), " ", text), hint);
  }
  void note(const std::string& text) { collected_.notes.push_back({Note::Kind::kChosen, text}); }
  // Said only of values that differ from the default: a resolved config states every key.
  void no_effect(const std::string& key, const std::string& reason) {
    const Setting* setting = given(key);
    const bool differs = setting && (!setting->option->get || !(setting->option->get(config_) ==
                                                                setting->option->get(RunConfig{})));
    if (differs)
      collected_.notes.push_back(
          {Note::Kind::kNoEffect, str("no effect here: ", setting->path, " (", reason, ")")});
  }

  void precision() {
    const Setting* fp16 = find("fp16.enabled");
    const Setting* bf16 = find("bf16.enabled");
    const bool on = fp16 && parse_bool(fp16->value.text).value_or(false);
    if (on && config_.precision == Precision::kBf16) {
      refuse(*fp16, str("contradicts ", say(*bf16)), "keep bf16");
    } else if (on) {
      config_.precision = Precision::kFp16;
    } else if (fp16 && fp16->is_auto() && !bf16) {
      note(
          "fp16.enabled: auto is off and bf16 is absent, so the run is in fp32; write bf16: auto "
          "for bf16 where the "
          "device has it");
    }
    loss_scale(on);
  }

  void loss_scale(bool on) {
    const Fp16Config& fp16 = config_.fp16;
    const bool dynamic = fp16.loss_scale == 0;
    for (const char* key : {"initial_scale_power", "loss_scale_window", "hysteresis",
                            "consecutive_hysteresis", "min_loss_scale"}) {
      if (!on || !dynamic)
        no_effect(str("fp16.", key), on ? "fp16.loss_scale is fixed" : "fp16 is off");
    }
    if (!on) no_effect("fp16.loss_scale", "fp16 is off");
    const double start = std::ldexp(1.0, static_cast<int>(fp16.initial_scale_power));
    if (on && dynamic && fp16.min_loss_scale > start)
      refuse(*find("fp16.min_loss_scale"),
             str("is more than the first scale, 2^fp16.initial_scale_power = ", start));
  }

  void offload_stage() {
    const Setting* stage = given("zero_optimization.stage");
    const Setting* pin = given("placement.weights");
    if (!stage || !pin || pin->path == "placement.weights" || pin->value.text == "device") return;
    if (config_.zero_stage.value_or(3) == 3) return;
    refuse(*pin, str("contradicts ", say(*stage), ": parameter offload needs stage 3"),
           "set zero_optimization.stage to 3 or auto, or pin with placement.weights");
  }

  // nvme_path of the offload keys makes memory.nvme where that is absent.
  void offload_drives() {
    const bool stated = given("memory.nvme") != nullptr;
    for (const char* part : {"param", "optimizer"}) {
      const std::string section = str("zero_optimization.offload_", part);
      const Setting* drive = given(section + ".nvme_path");
      if (!drive) continue;
      const Setting* pin =
          given(part == std::string("param") ? "placement.weights" : "placement.optimizer");
      const bool used = pin && pin->path == section + ".device" && pin->value.text == "nvme";
      if (!used) {
        no_effect(section + ".nvme_path", str(section, ".device is not nvme"));
        continue;
      }
      add_drive(*drive, stated);
    }
    if (!config_.memory.nvme.empty()) return;
    for (const char* part : {"weights", "optimizer", "gradients", "activations"})
      if (const Setting* pin = given(str("placement.", part)); pin && pin->value.text == "nvme")
        refuse(*pin, "needs a drive, and none is given",
               pin->path == pin->option->key
                   ? "add memory.nvme: [{path: FOLDER}]"
                   : "add nvme_path beside it, or memory.nvme: [{path: FOLDER}]");
  }

  void add_drive(const Setting& drive, bool stated) {
    const std::string path = absolute_path(drive.value.text, drive.base);
    for (const NvmeDrive& known : config_.memory.nvme)
      if (known.path == path) return;
    if (stated && find("memory.nvme")->level > drive.level) {
      no_effect(drive.option->key,
                str("memory.nvme at ", find("memory.nvme")->where, " replaces it"));
      return;
    }
    if (stated) {
      refuse(drive,
             str("contradicts memory.nvme at ", find("memory.nvme")->where,
                 ", which has no such path"),
             "keep one of the two");
      return;
    }
    config_.memory.nvme.push_back({path, std::nullopt, std::nullopt});
    config_.origins.by_key["memory.nvme"] = drive.origin();
    collected_.notes.push_back(
        {Note::Kind::kReadAs, str(drive.path, ": ", clipped(drive.written), " (", drive.where,
                                  ") read as memory.nvme: [{path: ", path, "}]")});
  }

  // One host arena serves weights and states alike, so one `false` is enough.
  void pinning() {
    const Setting* own = given("memory.pin");
    for (const char* key : {"offload_param.pin_memory", "offload_optimizer.pin_memory",
                            "cpu_offload_use_pin_memory"}) {
      const Setting* setting = given(str("zero_optimization.", key));
      if (!setting || parse_bool(setting->value.text).value_or(true)) continue;
      if (own && own->level > setting->level) {
        no_effect(setting->option->key, str("memory.pin at ", own->where, " replaces it"));
      } else if (own && own->level == setting->level && config_.memory.pin) {
        refuse(*setting, str("contradicts ", say(*own)), "keep one of the two");
      } else {
        config_.memory.pin = false;
        config_.origins.by_key["memory.pin"] = setting->origin();
        collected_.notes.push_back(
            {Note::Kind::kReadAs,
             str(setting->path, ": false (", setting->where, ") read as memory.pin: false")});
      }
    }
  }

  void optimizer() {
    const OptimizerConfig& optimizer = config_.optimizer;
    const Setting* mode = given("optimizer.params.adam_w_mode");
    const Setting* type = find("optimizer.type");
    if (optimizer.type == OptimizerType::kAdam && optimizer.adam_w_mode)
      note(
          "optimizer.type: Adam means AdamW (decoupled decay), as in DeepSpeed; adam_w_mode: false "
          "gives Adam with L2");
    if (optimizer.type == OptimizerType::kAdamW && mode && !optimizer.adam_w_mode)
      refuse(*mode,
             str("contradicts optimizer.type = AdamW (", type ? type->where : "default", ")"),
             "write optimizer.type: Adam for Adam with L2");
    const Setting* master = given("optimizer.master_weights");
    if (master && config_.precision == Precision::kFp16 &&
        optimizer.master_weights != MasterWeights::kFp32)
      refuse(*master, "contradicts fp16 weights, whose master is fp32",
             "leave master_weights at auto");
    if (master && config_.precision == Precision::kFp32 &&
        optimizer.master_weights != MasterWeights::kFp32)
      refuse(*master,
             str("contradicts fp32 weights (bf16.enabled: false, ", config_.origin("bf16.enabled"),
                 ")"),
             "write bf16: {enabled: true}, or leave master_weights at auto");
  }

  void optimizer_parameters() {
    const OptimizerType type = config_.optimizer.type;
    const bool adam = type == OptimizerType::kAdamW || type == OptimizerType::kAdam;
    if (!adam && type != OptimizerType::kLion)
      no_effect("optimizer.params.betas", "only Adam and Lion have betas");
    if (!adam && type != OptimizerType::kAdagrad)
      no_effect("optimizer.params.eps", "only Adam and Adagrad have eps");
    if (!adam) no_effect("optimizer.params.adam_w_mode", "only Adam has this mode");
    if (type != OptimizerType::kSgd)
      no_effect("optimizer.params.momentum", "only SGD has momentum");
    if (config_.optimizer.weight_decay == 0)
      no_effect("optimizer.no_decay_on_norms_and_biases", "there is no weight decay");
  }

  void scheduler() {
    const SchedulerConfig& scheduler = config_.scheduler;
    const Setting* warmup = given("scheduler.params.warmup_num_steps");
    const Setting* ratio = given("scheduler.params.warmup_ratio");
    if (warmup && ratio && scheduler.warmup_ratio > 0)
      refuse(*warmup, str("contradicts ", say(*ratio)), "give one of the two");
    const Setting* total = given("scheduler.params.total_num_steps");
    if (!total) total = given("train.steps");
    const std::optional<std::int64_t> end =
        scheduler.total_num_steps ? scheduler.total_num_steps : config_.train.steps;
    if (warmup && total && end && *scheduler.warmup_num_steps > *end)
      refuse(*warmup, str("is more than ", say(*total), ": the peak would never be reached"),
             "shorten the warm-up or lengthen the run");
    const bool deepspeeds = scheduler.type >= SchedulerType::kWarmupLR;
    if (deepspeeds && !find("scheduler.params.warmup_num_steps") && scheduler.warmup_ratio == 0)
      note(
          "scheduler.params.warmup_num_steps is absent: no warm-up (DeepSpeed's own default is "
          "1000 steps)");
    if (scheduler.warmup_max_lr && scheduler.warmup_min_lr > *scheduler.warmup_max_lr)
      refuse(*find("scheduler.params.warmup_min_lr"),
             str("is above ", say(*find("scheduler.params.warmup_max_lr"))));
  }

  void scheduler_parameters() {
    const SchedulerType type = config_.scheduler.type;
    const bool linear_warmup =
        type == SchedulerType::kWarmupLR || type == SchedulerType::kWarmupDecayLR;
    const std::string params = "scheduler.params.";
    if (!linear_warmup) {
      no_effect(params + "warmup_min_lr", "only WarmupLR and WarmupDecayLR use it");
      no_effect(params + "warmup_max_lr", "only WarmupLR and WarmupDecayLR use it");
    }
    if (type != SchedulerType::kWarmupCosineLR) {
      no_effect(params + "warmup_min_ratio", "only WarmupCosineLR uses it");
      no_effect(params + "cos_min_ratio", "only WarmupCosineLR uses it");
    }
    if (!linear_warmup && type != SchedulerType::kWarmupCosineLR)
      no_effect(params + "warmup_type", "this schedule warms up linearly");
  }

  void model_and_data() {
    const Setting* type = find("model.type");
    if (config_.model.type == ModelType::kMlp) {
      if (const Setting* path = given("model.path"))
        refuse(*path, str("contradicts ", say(*type)),
               "an mlp has no folder; remove one of the two");
    } else {
      for (const char* key : {"model.width", "model.layers", "model.hidden"})
        no_effect(key, "only model.type: mlp uses it");
    }
    const bool regression = config_.data.format && *config_.data.format >= DataFormat::kCsv;
    const Setting* format = given("data.format");
    if (regression && format && config_.model.type == ModelType::kHf &&
        config_.data.format != DataFormat::kRandom)
      refuse(*format, "needs model.type: mlp");
    if (config_.data.packing && config_.data.group_by_length)
      no_effect("data.group_by_length", "data.packing is on");
    const bool random = config_.data.format == DataFormat::kRandom;
    if (!random) no_effect("data.samples", "only data.format: random uses it");
    for (const char* key : {"data.train", "data.eval"}) {
      if (random) no_effect(key, "data.format: random makes data up");
    }
    if (config_.model.type == ModelType::kMlp) {
      for (const char* key : {"data.seq_len", "data.packing", "data.group_by_length",
                              "data.train_on_prompt", "eval.sample"})
        no_effect(key, "only models of text use it");
    }
    const auto& format_now = config_.data.format;
    if (format_now && *format_now != DataFormat::kCsv)
      no_effect("data.target", "only data.format: csv uses it");
    if (format_now && *format_now != DataFormat::kTokens)
      no_effect("data.token_width", "only data.format: tokens uses it");
  }

  void others() {
    if (config_.data.eval.empty() && config_.data.eval_fraction == 0) {
      no_effect("eval.every", "there is no data.eval and no data.eval_fraction");
      no_effect("eval.steps", "there is no data.eval and no data.eval_fraction");
    }
    if (config_.export_.single_file)
      no_effect("export.shard_size", "export.single_file puts all into one file");
    if (config_.checkpoint.keep == 1) {
      no_effect("checkpoint.keep_every", "checkpoint.keep is 1");
      if (config_.export_.at_kept_checkpoints)
        note("checkpoint.keep is 1, so the weights are exported at the end of the run only");
    }
  }

  const Chosen& chosen_;
  RunConfig& config_;
  Collected& collected_;
};

}  // namespace

void check_combinations(const Chosen& chosen, RunConfig& config, Collected& collected) {
  Checker(chosen, config, collected).run();
}

}  // namespace zinf::config
