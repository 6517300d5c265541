// Keys shared with DeepSpeed that have an effect: batch, optimizer, scheduler, precision, stage;
// io, checkpoint, export.
#include "engine/base/str.h"
#include "engine/config/option_rows.h"

namespace zinf::config {

namespace {

void batch_rows(std::vector<Option>& out) {
  const auto section = &RunConfig::batch;
  out.push_back(Row("train_batch_size", Kind::kInteger,
                    "Samples per update over all ranks: micro-batch x accumulation x ranks. Any "
                    "two give the third.")
                    .to(section, &BatchConfig::total)
                    .least(1)
                    .in("samples"));
  out.push_back(Row("train_micro_batch_size_per_gpu", Kind::kInteger, "Samples per micro-batch.")
                    .to(section, &BatchConfig::micro)
                    .least(1)
                    .in("samples")
                    .alias("micro_batch_size")
                    .alias("per_device_train_batch_size")
                    .usually("auto (the largest that fits, else 1)"));
  out.push_back(Row("gradient_accumulation_steps", Kind::kInteger, "Micro-batches per update.")
                    .to(section, &BatchConfig::accumulation)
                    .least(1)
                    .in("micro-batches")
                    .usually("auto (1)"));
  out.push_back(Row("gradient_clipping", Kind::kNumber,
                    "Largest global gradient norm; 0: none. `auto` is 1.0.")
                    .to(&RunConfig::gradient_clipping)
                    .least(0)
                    .when_auto("1.0")
                    .usually("0 (none)")
                    .alias("max_grad_norm"));
}

void optimizer_rows(std::vector<Option>& out) {
  const auto section = &RunConfig::optimizer;
  out.push_back(Row("optimizer.type", Kind::kChoice,
                    "As in DeepSpeed, Adam means AdamW unless adam_w_mode is false.")
                    .to(section, &OptimizerConfig::type)
                    .one_of({"AdamW", "Adam", "Lion", "Adagrad", "SGD"})
                    .also("adamw_torch", "AdamW")
                    .also("adamw_torch_fused", "AdamW")
                    .also("adamw_hf", "AdamW")
                    .also("DeepSpeedCPUAdam", "Adam")
                    .also("FusedAdam", "Adam")
                    .alias("optim"));
  out.push_back(Row("optimizer.params.lr", Kind::kNumber,
                    "Learning rate; the schedule's peak unless that says otherwise.")
                    .to(section, &OptimizerConfig::lr)
                    .least(0)
                    .alias("learning_rate"));
  out.push_back(Row("optimizer.params.betas", Kind::kPair, "Decay rates of the two moments.")
                    .to(section, &OptimizerConfig::betas)
                    .usually("[0.9, 0.999]; Lion: [0.9, 0.99]")
                    .least(0)
                    .below(1));
  out.push_back(
      Row("optimizer.params.eps", Kind::kNumber, "Added to the root of the second moment.")
          .to(section, &OptimizerConfig::eps)
          .least(0));
  out.push_back(Row("optimizer.params.weight_decay", Kind::kNumber, "Weight decay.")
                    .to(section, &OptimizerConfig::weight_decay)
                    .least(0)
                    .alias("weight_decay"));
  out.push_back(Row("optimizer.params.momentum", Kind::kNumber, "SGD: momentum.")
                    .to(section, &OptimizerConfig::momentum)
                    .least(0)
                    .below(1));
  out.push_back(Row("optimizer.params.adam_w_mode", Kind::kBool,
                    "Adam: decoupled decay (AdamW). false: decay is added to the gradient (L2).")
                    .to(section, &OptimizerConfig::adam_w_mode)
                    .alias("optimizer.params.adamw_mode"));
  out.push_back(Row("optimizer.no_decay_on_norms_and_biases", Kind::kBool,
                    "No weight decay on norms and biases.")
                    .to(section, &OptimizerConfig::no_decay_on_norms_and_biases));
  out.push_back(Row("optimizer.state_dtype", Kind::kChoice, "Type of the moments.")
                    .to(section, &OptimizerConfig::state_dtype)
                    .one_of({"fp32", "bf16", "int8"}));
  out.push_back(
      Row("optimizer.master_weights", Kind::kChoice,
          "fp32 copy, exact 16-bit remainder (split), or none with stochastic rounding (bf16-sr).")
          .to(section, &OptimizerConfig::master_weights)
          .one_of({"fp32", "split", "bf16-sr"})
          .usually("auto (split where weights are bf16, else fp32)"));
  out.push_back(Row("optimizer.threads", Kind::kInteger,
                    "Threads of the update on the host; its result does not depend on them.")
                    .to(section, &OptimizerConfig::threads)
                    .least(1)
                    .most(4096)
                    .in("threads")
                    .usually("auto (one for each physical core that the process may use)"));
}

void scheduler_rows(std::vector<Option>& out) {
  const auto section = &RunConfig::scheduler;
  out.push_back(
      Row("scheduler.type", Kind::kChoice, "Learning rate schedule; steps are optimizer updates.")
          .to(section, &SchedulerConfig::type)
          .one_of({"constant", "linear", "cosine", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"})
          .also("constant_with_warmup", "constant")
          .alias("lr_scheduler_type")
          .alias("lr_scheduler"));
  out.push_back(Row("scheduler.params.warmup_num_steps", Kind::kInteger,
                    "Updates until the peak; 0 and 1 are allowed.")
                    .to(section, &SchedulerConfig::warmup_num_steps)
                    .least(0)
                    .in("steps")
                    .alias("warmup_steps")
                    .usually("auto (warmup_ratio x total)"));
  out.push_back(
      Row("scheduler.params.total_num_steps", Kind::kInteger, "Updates until the schedule's end.")
          .to(section, &SchedulerConfig::total_num_steps)
          .least(1)
          .in("steps")
          .usually("auto (the run's steps)"));
  out.push_back(
      Row("scheduler.params.warmup_ratio", Kind::kNumber, "Warm-up as a share of all updates.")
          .to(section, &SchedulerConfig::warmup_ratio)
          .least(0)
          .most(1)
          .alias("warmup_ratio"));
  out.push_back(
      Row("scheduler.params.warmup_min_lr", Kind::kNumber, "Rate at the start of the warm-up.")
          .to(section, &SchedulerConfig::warmup_min_lr)
          .least(0));
  out.push_back(
      Row("scheduler.params.warmup_max_lr", Kind::kNumber, "Rate at the end of the warm-up.")
          .to(section, &SchedulerConfig::warmup_max_lr)
          .least(0)
          .usually("auto (optimizer.params.lr)"));
  out.push_back(Row("scheduler.params.warmup_type", Kind::kChoice, "Shape of DeepSpeed's warm-up.")
                    .to(section, &SchedulerConfig::warmup_type)
                    .one_of({"log", "linear"}));
  out.push_back(Row("scheduler.params.warmup_min_ratio", Kind::kNumber,
                    "WarmupCosineLR: first rate as a share of lr.")
                    .to(section, &SchedulerConfig::warmup_min_ratio)
                    .least(0)
                    .most(1));
  out.push_back(Row("scheduler.params.cos_min_ratio", Kind::kNumber,
                    "WarmupCosineLR: last rate as a share of lr.")
                    .to(section, &SchedulerConfig::cos_min_ratio)
                    .least(0)
                    .most(1));
}

void fp16_rows(std::vector<Option>& out) {
  const auto section = &RunConfig::fp16;
  // The same member as bf16.enabled: check_combinations() sets it, whatever the order of the keys.
  Row enabled("fp16.enabled", Kind::kBool,
              "fp16 weights with fp32 masters and a loss scale; `auto` is off.");
  enabled.get = [](const RunConfig& config) { return Value(config.precision == Precision::kFp16); };
  out.push_back(std::move(enabled));
  out.push_back(Row("fp16.loss_scale", Kind::kNumber, "Fixed loss scale; 0: dynamic.")
                    .to(section, &Fp16Config::loss_scale)
                    .least(0));
  out.push_back(Row("fp16.initial_scale_power", Kind::kInteger,
                    "Dynamic: the first scale is 2 to this power.")
                    .to(section, &Fp16Config::initial_scale_power)
                    .least(0)
                    .most(32));
  out.push_back(Row("fp16.loss_scale_window", Kind::kInteger,
                    "Dynamic: good steps after which the scale doubles.")
                    .to(section, &Fp16Config::loss_scale_window)
                    .least(1)
                    .in("steps"));
  out.push_back(Row("fp16.hysteresis", Kind::kInteger,
                    "Dynamic: the scale halves at this overflow, those before only count.")
                    .to(section, &Fp16Config::hysteresis)
                    .least(1)
                    .in("overflows"));
  out.push_back(Row("fp16.consecutive_hysteresis", Kind::kBool,
                    "Dynamic: every good step starts the count of overflows again.")
                    .to(section, &Fp16Config::consecutive_hysteresis));
  out.push_back(Row("fp16.min_loss_scale", Kind::kNumber,
                    "Dynamic: the least scale; an overflow there ends the run.")
                    .to(section, &Fp16Config::min_loss_scale)
                    .above(0));
}

void precision_rows(std::vector<Option>& out) {
  out.push_back(
      Row("gradients.dtype", Kind::kChoice,
          "Type in which a step's gradients wait for the update. Micro-batches are summed in fp32; "
          "bf16 rounds the sum, which halves its bytes and changes numerics.")
          .to(&RunConfig::gradients, &GradientsConfig::dtype)
          .one_of({"fp32", "bf16"})
          .alias("data_types.grad_accum_dtype"));
  Row bf16("bf16.enabled", Kind::kBool,
           "bf16 weights and compute; `auto`: where the device has it and fp16 is off.");
  bf16.get = [](const RunConfig& config) {
    return config.precision ? Value(*config.precision == Precision::kBf16) : Value(AutoValue{});
  };
  bf16.set = [](RunConfig& config, const Value& value) {
    const bool* on = std::get_if<bool>(&value);
    config.precision = on ? std::optional(*on ? Precision::kBf16 : Precision::kFp32) : std::nullopt;
  };
  bf16.may_be_unset = true;
  out.push_back(std::move(bf16));
  fp16_rows(out);
  out.push_back(Row("zero_optimization.stage", Kind::kInteger,
                    "What is replicated across ranks: 0 all, 1 optimizer sharded, 2 gradients too, "
                    "3 weights too.")
                    .to(&RunConfig::zero_stage)
                    .least(0)
                    .most(3)
                    .usually("auto (the lowest that fits)"));
  out.push_back(Row("zero_optimization.offload_param.nvme_path", Kind::kPath,
                    "Drive for offload_param.device: nvme where memory.nvme is absent.")
                    .usually("none"));
  out.push_back(Row("zero_optimization.offload_optimizer.nvme_path", Kind::kPath,
                    "Drive for offload_optimizer.device: nvme where memory.nvme is absent.")
                    .usually("none"));
  for (const char* name :
       {"offload_param.pin_memory", "offload_optimizer.pin_memory", "cpu_offload_use_pin_memory"})
    out.push_back(Row(str("zero_optimization.", name), Kind::kBool, "false: as memory.pin: false.")
                      .usually("auto (memory.pin)"));
}

void io_rows(std::vector<Option>& out) {
  const auto section = &RunConfig::io;
  out.push_back(
      Row("io.engine", Kind::kChoice, "Asynchronous I/O engine; auto takes the first that works.")
          .to(section, &IoConfig::engine)
          .one_of({"io_uring", "libaio", "threads"}));
  out.push_back(Row("io.block_size", Kind::kSize, "Size of one request.")
                    .to(section, &IoConfig::block_size)
                    .least(4096)
                    .most(1 << 30)
                    .alias("aio.block_size")
                    .usually("auto (from the tuned profile)"));
  out.push_back(Row("io.depth", Kind::kInteger, "Requests in flight per drive and direction.")
                    .to(section, &IoConfig::depth)
                    .least(1)
                    .most(4096)
                    .in("requests")
                    .alias("aio.queue_depth")
                    .usually("auto (from the tuned profile)"));
  out.push_back(Row("io.threads", Kind::kInteger,
                    "Threads per drive of io.engine: threads; the other engines need one.")
                    .to(section, &IoConfig::threads)
                    .least(1)
                    .most(256)
                    .in("threads")
                    .alias("aio.thread_count")
                    .alias("aio.intra_op_parallelism")
                    .alias("aio.num_threads"));
  out.push_back(Row("io.verify", Kind::kBool, "Check every page read against its checksum.")
                    .to(section, &IoConfig::verify));
}

void checkpoint_rows(std::vector<Option>& out) {
  const auto section = &RunConfig::checkpoint;
  out.push_back(Row("checkpoint.every", Kind::kCadence, "Steps or time between commits.")
                    .to(section, &CheckpointConfig::every)
                    .above(0)
                    .alias("save_steps")
                    .usually("auto (each step if all is on NVMe, else 10m)"));
  out.push_back(
      Row("checkpoint.keep", Kind::kInteger,
          "1: the live commit only, no copies; n: n - 1 older ones too, copied in the background.")
          .to(section, &CheckpointConfig::keep)
          .least(1)
          .alias("save_total_limit"));
  out.push_back(
      Row("checkpoint.keep_every", Kind::kCadence, "Steps or time between kept checkpoints.")
          .to(section, &CheckpointConfig::keep_every)
          .above(0));
  out.push_back(Row("checkpoint.slots", Kind::kInteger,
                    "Slots per NVMe extent. 1 halves the space; a kill in the middle of a step "
                    "then loses the run.")
                    .to(section, &CheckpointConfig::slots)
                    .least(1)
                    .most(2));
  out.push_back(
      Row("checkpoint.grace", Kind::kDuration, "Time a signalled run has to finish its step.")
          .to(section, &CheckpointConfig::grace)
          .least(0));
  out.push_back(
      Row("export.at_end", Kind::kBool, "Write a Hugging Face folder when the run is done.")
          .to(&RunConfig::export_, &ExportConfig::at_end));
  out.push_back(Row("export.dtype", Kind::kChoice, "Type of exported weights.")
                    .to(&RunConfig::export_, &ExportConfig::dtype)
                    .one_of({"bf16", "fp32"})
                    .usually("auto (as the working weights)"));
  out.push_back(Row("export.shard_size", Kind::kSize,
                    "Most bytes of an exported file; a larger tensor has one of its own.")
                    .to(&RunConfig::export_, &ExportConfig::shard_size)
                    .above(0)
                    .usually("5GB"));
  out.push_back(Row("export.single_file", Kind::kBool, "One safetensors file instead of shards.")
                    .to(&RunConfig::export_, &ExportConfig::single_file));
  out.push_back(Row("zero_optimization.stage3_gather_16bit_weights_on_model_save", Kind::kBool,
                    "Export a Hugging Face folder at each kept checkpoint too.")
                    .to(&RunConfig::export_, &ExportConfig::at_kept_checkpoints)
                    .alias("zero_optimization.gather_16bit_weights_on_model_save")
                    .alias("zero_optimization.stage3_gather_fp16_weights_on_model_save"));
  out.push_back(Row("output_dir", Kind::kPath, "The run folder.")
                    .to(&RunConfig::output_dir)
                    .usually("runs/<name of the config file>, beside the config file"));
  out.push_back(
      Row("deepspeed", Kind::kPath, "A DeepSpeed JSON file whose keys are read as if written here.")
          .usually("none"));
}

}  // namespace

std::vector<Option> training_options() {
  std::vector<Option> out;
  batch_rows(out);
  optimizer_rows(out);
  scheduler_rows(out);
  precision_rows(out);
  io_rows(out);
  checkpoint_rows(out);
  return out;
}

}  // namespace zinf::config
