// DeepSpeed's documented keys that have no effect here, and those that would change the mathematics
// and are refused. Keys with an effect stand in options_own.cc and options_training.cc, as options
// or as aliases.
#include <sstream>

#include "engine/config/option_rows.h"

namespace zinf::config {

namespace {

// Every name of a blank-separated list, below `section` ("" for the top level).
void no_effect(std::vector<Option>& out, const std::string& section, Kind kind,
               const std::string& names, const std::string& reason) {
  std::istringstream list(names);
  std::string name;
  while (list >> name) {
    Row row(section.empty() ? name : section + "." + name, kind, "");
    row.effect = Effect::kNone;
    row.reason = reason;
    if (kind == Kind::kInteger || kind == Kind::kNumber) row.range.least = -1;
    if (kind == Kind::kSize) row.kind = Kind::kInteger, row.range.least = 0, row.unit = "elements";
    out.push_back(std::move(row));
  }
}

void refused(std::vector<Option>& out, const std::string& key, Kind kind,
             std::vector<std::string> harmless, const std::string& reason) {
  Row row(key, kind, "");
  row.effect = Effect::kRefused;
  row.harmless = std::move(harmless);
  row.reason = reason;
  out.push_back(std::move(row));
}

void zero_rows(std::vector<Option>& out) {
  const std::string zero = "zero_optimization";
  const std::string buffers = "buffers are sized and placed by the plan";
  no_effect(
      out, zero, Kind::kBool,
      "contiguous_gradients reduce_scatter allgather_partitions overlap_comm "
      "use_multi_rank_bucket_allreduce round_robin_gradients legacy_stage1 memory_efficient_linear "
      "stage3_use_all_reduce_for_fetch_params "
      "use_all_reduce_for_fetch_params "
      "stage3_allgather_sequential allgather_sequential",
      buffers);
  no_effect(
      out, zero, Kind::kSize,
      "reduce_bucket_size allgather_bucket_size sub_group_size "
      "stage3_prefetch_bucket_size prefetch_bucket_size stage3_param_persistence_threshold "
      "param_persistence_threshold stage3_model_persistence_threshold model_persistence_threshold "
      "stage3_max_live_parameters max_live_parameters stage3_max_reuse_distance max_reuse_distance "
      "stage3_module_granularity_threshold module_granularity_threshold",
      buffers);
  no_effect(out, zero + ".offload_param", Kind::kSize, "buffer_count buffer_size max_in_cpu",
            buffers);
  no_effect(out, zero + ".offload_optimizer", Kind::kBool,
            "pipeline pipeline_read pipeline_write fast_init "
            "super_offload",
            buffers);
  no_effect(out, zero + ".offload_optimizer", Kind::kSize, "buffer_count buffer_size", buffers);
  no_effect(out, zero + ".offload_optimizer", Kind::kNumber, "cpuadam_cores_perc",
            "threads follow the cores that the process may use; optimizer.threads names a number");
  Row ratio(zero + ".offload_optimizer.ratio", Kind::kNumber, "");
  ratio.effect = Effect::kNone;
  ratio.reason =
      "the device pins all optimizer state; placement.optimizer: auto mixes tiers piece by piece";
  ratio.range = {0, 1, false, false};
  out.push_back(std::move(ratio));
  no_effect(out, zero, Kind::kBool,
            "elastic_checkpoint load_from_fp32_weights pipeline_loading_checkpoint",
            "a run resumes on any number of ranks");
  no_effect(out, zero, Kind::kBool,
            "ignore_unused_parameters override_module_apply log_trace_cache_warnings "
            "enable_sanity_checks save_muon_momentum_buffer_in_memory",
            "nothing here corresponds to it");
  no_effect(out, zero, Kind::kAny, "leaf_module", "nothing here corresponds to it");
  no_effect(out, zero, Kind::kInteger, "zero_hpz_partition_size mics_shard_size",
            "weights are sharded by stage alone");
  no_effect(out, zero, Kind::kBool, "mics_hierarchical_params_gather",
            "weights are sharded by stage alone");
  no_effect(out, zero, Kind::kBool,
            "zero_quantized_weights zero_quantized_nontrainable_weights "
            "zero_quantized_gradients",
            "communication is exact");
  no_effect(out, zero, Kind::kAny, "zeropp_loco_param zenflow",
            "communication and updates are exact");
}

void optimizer_rows(std::vector<Option>& out) {
  const std::string params = "optimizer.params";
  no_effect(out, params, Kind::kBool,
            "torch_adam fused foreach capturable differentiable "
            "fp32_optimizer_states set_grad_none cuda_aware",
            "there is one implementation");
  no_effect(out, params, Kind::kAny, "freeze_step comm_backend_name",
            "only compressed optimizers use it");
  refused(out, params + ".amsgrad", Kind::kBool, {"false"}, "amsgrad is not supported");
  refused(out, params + ".bias_correction", Kind::kBool, {"true"}, "Adam always corrects the bias");
  refused(out, params + ".nesterov", Kind::kBool, {"false"}, "Nesterov momentum is not supported");
  refused(out, params + ".dampening", Kind::kNumber, {"0"}, "dampening is not supported");
  no_effect(out, "optimizer", Kind::kBool, "legacy_fusion", "there is one implementation");
  no_effect(out, "scheduler.params", Kind::kInteger, "last_batch_iteration",
            "the position comes from the run's state");
  no_effect(out, "", Kind::kBool, "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer",
            "where the optimizer runs is planned");
  no_effect(out, "", Kind::kBool, "managed_gradient_accumulation check_overflow",
            "accumulation and the non-finite check are part of every step");
  refused(out, "gradient_allreduce_op", Kind::kText, {"mean"},
          "the loss is the mean over all ranks");
}

void precision_rows(std::vector<Option>& out) {
  no_effect(out, "fp16", Kind::kBool, "auto_cast", "inputs are token ids or read as fp32");
  refused(out, "fp16.fp16_master_weights_and_grads", Kind::kBool, {"false"},
          "masters and accumulated gradients are fp32");
  no_effect(out, "fp16", Kind::kText, "opt_level", "apex is not used");
  no_effect(out, "bf16", Kind::kBool, "immediate_grad_update auto_cast",
            "gradients are accumulated at once, in fp32");
  no_effect(out, "bf16", Kind::kBool, "check_grad_overflow",
            "the non-finite check is part of every step");
  refused(out, "bf16.bf16_master_weights_and_grads", Kind::kBool, {"false"},
          "write optimizer.master_weights: bf16-sr and gradients.dtype: bf16 instead");
  refused(out, "bf16.bf16_optimizer_states", Kind::kBool, {"false"},
          "write optimizer.state_dtype: bf16 instead");
  refused(out, "amp.enabled", Kind::kBool, {"false"}, "write bf16: {enabled: true} instead");
  no_effect(out, "amp", Kind::kAny, "opt_level keep_batchnorm_fp32 loss_scale", "apex is not used");
  refused(out, "torch_autocast.enabled", Kind::kBool, {"false"},
          "write bf16: {enabled: true} instead");
  no_effect(out, "torch_autocast", Kind::kAny, "dtype lower_precision_safe_modules",
            "autocast is not used");
  no_effect(out, "data_types", Kind::kText, "param_dtype buffer_dtype",
            "types follow bf16.enabled");
}

void communication_rows(std::vector<Option>& out) {
  const std::string exact = "gradients are reduced in fp32, in rank order";
  no_effect(out, "", Kind::kText, "communication_data_type seq_parallel_communication_data_type",
            exact);
  no_effect(out, "", Kind::kBool, "prescale_gradients sparse_gradients disable_allgather", exact);
  no_effect(out, "", Kind::kNumber, "gradient_predivide_factor", exact);
  no_effect(out, "", Kind::kBool, "use_data_before_expert_parallelism",
            "only data parallelism is used");
  refused(out, "tensor_parallel.autotp_size", Kind::kInteger, {"0", "1"},
          "tensor parallelism is not supported");
  no_effect(out, "tensor_parallel", Kind::kAny,
            "preset_model tp_overlap_comm partition_config dtype tp tensor_parallel "
            "tp_size tp_grain_size injection_policy_tuple keep_module_on_host "
            "replace_with_kernel_inject kernel_inject "
            "use_default_specs",
            "tensor parallelism is not used");
  no_effect(out, "", Kind::kAny, "data_parallel_group global_rank mpu",
            "ranks come from the launcher");
}

// Refused as soon as a section is on, because leaving it out would train another model.
void section_rows(std::vector<Option>& out) {
  refused(out, "elasticity", Kind::kAny, {},
          "give the batch sizes; a run resumes on any number of ranks");
  refused(out, "compression_training", Kind::kAny, {},
          "compression during training is not supported");
  refused(out, "quantize_training", Kind::kAny, {}, "quantised training is not supported");
  refused(out, "weight_quantization", Kind::kAny, {}, "quantised weights are not supported");
  refused(out, "data_efficiency", Kind::kAny, {},
          "curriculum and token dropping are not supported");
  refused(out, "curriculum_learning", Kind::kAny, {}, "curriculum learning is not supported");
  refused(out, "progressive_layer_drop", Kind::kAny, {}, "layer dropping is not supported");
  refused(out, "sparse_attention", Kind::kAny, {}, "sparse attention is not supported");
  refused(out, "pipeline", Kind::kAny, {}, "pipeline parallelism is not supported");
  refused(out, "expert_parallel", Kind::kAny, {}, "mixture-of-experts models are not supported");
  refused(out, "hybrid_engine", Kind::kAny, {}, "the hybrid engine is not supported");
  no_effect(out, "", Kind::kAny, "autotuning", "use `zinf tune` and `zinf plan`");
  no_effect(out, "", Kind::kAny, "compile eigenvalue graph_harvesting",
            "nothing here corresponds to it");
  no_effect(out, "", Kind::kAny, "nebula datastates_ckpt",
            "see checkpoint.every and checkpoint.keep");
}

void watching_rows(std::vector<Option>& out) {
  const std::string metrics = "see metrics.jsonl and summary.json in the run folder";
  no_effect(out, "", Kind::kInteger, "steps_per_print logging_steps",
            "the progress line shows every step");
  no_effect(out, "", Kind::kBool, "wall_clock_breakdown memory_breakdown dump_state", metrics);
  no_effect(out, "", Kind::kText, "log_level", "use -v and -q");
  no_effect(out, "", Kind::kBool, "dataloader_drop_last",
            "an epoch's last, incomplete step is described in the manual");
  no_effect(out, "", Kind::kInteger, "vocabulary_size", "it comes from the model");
  no_effect(out, "", Kind::kAny, "timers", metrics);
  for (const char* monitor : {"tensorboard", "wandb", "csv_monitor", "comet"})
    no_effect(out, monitor, Kind::kBool, "enabled", metrics);
  for (const char* monitor : {"tensorboard", "csv_monitor"})
    no_effect(out, monitor, Kind::kText, "output_path job_name", metrics);
  no_effect(out, "wandb", Kind::kText, "group team project host", metrics);
  no_effect(out, "comet", Kind::kAny,
            "samples_log_interval project workspace api_key experiment_name experiment_key "
            "online mode",
            metrics);
  no_effect(out, "flops_profiler", Kind::kBool, "enabled detailed", metrics);
  no_effect(out, "flops_profiler", Kind::kNumber, "recompute_fwd_factor", metrics);
  no_effect(out, "flops_profiler", Kind::kInteger, "profile_step module_depth top_modules",
            metrics);
  no_effect(out, "flops_profiler", Kind::kText, "output_file", metrics);
  no_effect(out, "comms_logger", Kind::kBool, "enabled verbose prof_all debug", metrics);
  no_effect(out, "comms_logger", Kind::kAny, "prof_ops", metrics);
}

void remaining_rows(std::vector<Option>& out) {
  const std::string planned = "activations are planned: step.recompute and placement.activations";
  no_effect(out, "activation_checkpointing", Kind::kBool,
            "partition_activations contiguous_memory_optimization "
            "synchronize_checkpoint_boundary profile",
            planned);
  no_effect(out, "activation_checkpointing", Kind::kInteger, "number_checkpoints", planned);
  no_effect(out, "aio", Kind::kBool, "single_submit overlap_events use_gds",
            "the I/O engine keeps its depth in flight");
  no_effect(out, "checkpoint", Kind::kText, "tag_validation", "manifests are numbered and checked");
  no_effect(out, "checkpoint", Kind::kBool, "load_universal use_node_local_storage",
            "a run resumes on any number of ranks");
  no_effect(out, "checkpoint", Kind::kAny, "parallel_write writer", "state is committed in place");
}

}  // namespace

std::vector<Option> deepspeed_options() {
  std::vector<Option> out;
  zero_rows(out);
  optimizer_rows(out);
  precision_rows(out);
  communication_rows(out);
  section_rows(out);
  watching_rows(out);
  remaining_rows(out);
  return out;
}

}  // namespace zinf::config
