// Keys of zinf's own sections: model, data, train, eval, memory, placement, step.
#include "engine/config/option_rows.h"

namespace zinf::config {

namespace {

void model_rows(std::vector<Option>& out) {
  out.push_back(
      Row("model.path", Kind::kModelPath,
          "Hugging Face folder, or a Hub id that is looked up in the local Hugging Face cache.")
          .to(&RunConfig::model, &ModelConfig::path)
          .usually("none")
          .alias("base_model")
          .alias("model_name_or_path"));
  out.push_back(Row("model.init", Kind::kChoice,
                    "Weights from the folder, or random ones from its config.json alone.")
                    .to(&RunConfig::model, &ModelConfig::init)
                    .one_of({"pretrained", "random"}));
  out.push_back(Row("model.type", Kind::kChoice,
                    "A Hugging Face model, or the built-in mlp that needs no folder.")
                    .to(&RunConfig::model, &ModelConfig::type)
                    .one_of({"hf", "mlp"}));
  out.push_back(Row("model.width", Kind::kInteger, "mlp: width d of the input and of every block.")
                    .to(&RunConfig::model, &ModelConfig::width)
                    .least(1)
                    .most(1 << 20)
                    .alias("model.d")
                    .usually("none; needed for mlp"));
  out.push_back(Row("model.layers", Kind::kInteger, "mlp: number of blocks (Linear, GELU, Linear).")
                    .to(&RunConfig::model, &ModelConfig::layers)
                    .least(1)
                    .most(1 << 16)
                    .usually("none; needed for mlp"));
  out.push_back(Row("model.hidden", Kind::kInteger, "mlp: inner width of a block.")
                    .to(&RunConfig::model, &ModelConfig::hidden)
                    .least(1)
                    .most(1 << 22)
                    .usually("auto (4 x width)"));
}

void data_rows(std::vector<Option>& out) {
  const auto section = &RunConfig::data;
  out.push_back(Row("data.train", Kind::kPaths, "Training files or glob patterns.")
                    .to(section, &DataConfig::train)
                    .usually("none"));
  out.push_back(Row("data.eval", Kind::kPaths, "Evaluation files or glob patterns.")
                    .to(section, &DataConfig::eval)
                    .usually("none"));
  out.push_back(
      Row("data.eval_fraction", Kind::kNumber, "Share of the training data kept for evaluation.")
          .to(section, &DataConfig::eval_fraction)
          .least(0)
          .below(1)
          .alias("val_set_size"));
  out.push_back(Row("data.seq_len", Kind::kInteger, "Positions per sequence.")
                    .to(section, &DataConfig::seq_len)
                    .least(1)
                    .most(1 << 24)
                    .in("tokens")
                    .alias("sequence_len")
                    .alias("cutoff_len")
                    .alias("max_seq_length"));
  out.push_back(Row("data.packing", Kind::kBool,
                    "Several documents in one sequence, attention kept inside each.")
                    .to(section, &DataConfig::packing)
                    .alias("sample_packing"));
  out.push_back(Row("data.group_by_length", Kind::kBool,
                    "Without packing: samples of similar length together.")
                    .to(section, &DataConfig::group_by_length)
                    .alias("group_by_length"));
  out.push_back(Row("data.train_on_prompt", Kind::kBool,
                    "Learn from the prompt too, not only from the answer.")
                    .to(section, &DataConfig::train_on_prompt)
                    .alias("train_on_inputs"));
  out.push_back(Row("data.format", Kind::kChoice,
                    "What the files hold; auto looks at names and first records.")
                    .to(section, &DataConfig::format)
                    .one_of({"text", "messages", "conversations", "alpaca", "tokens", "csv",
                             "tensor", "random"}));
  out.push_back(Row("data.on_change", Kind::kChoice,
                    "When a run is resumed onto other data: refuse, or restart: its steps go on, "
                    "the new data "
                    "begins at its start (train.epochs then counts from there).")
                    .to(section, &DataConfig::on_change)
                    .one_of({"refuse", "restart"}));
  out.push_back(Row("data.target", Kind::kText, "csv: name of the label column.")
                    .to(section, &DataConfig::target)
                    .usually("auto (the last column)"));
  out.push_back(Row("data.samples", Kind::kInteger, "random: samples per epoch.")
                    .to(section, &DataConfig::samples)
                    .least(1)
                    .in("samples")
                    .usually("auto (endless)"));
  out.push_back(Row("data.token_width", Kind::kInteger,
                    "tokens: bits per id of files without a header (nanoGPT: 16).")
                    .to(section, &DataConfig::token_width)
                    .least(16)
                    .in("bits, 16 or 32")
                    .usually("auto (the file's header tells)"));
}

void train_rows(std::vector<Option>& out) {
  const auto section = &RunConfig::train;
  out.push_back(Row("train.steps", Kind::kInteger, "Optimizer updates. Give steps or epochs.")
                    .to(section, &TrainConfig::steps)
                    .least(1)
                    .in("steps")
                    .alias("max_steps")
                    .usually("auto (from epochs)"));
  out.push_back(Row("train.epochs", Kind::kNumber, "Passes over the training data.")
                    .to(section, &TrainConfig::epochs)
                    .above(0)
                    .alias("num_epochs")
                    .alias("num_train_epochs")
                    .usually("auto (1 without steps)"));
  out.push_back(
      Row("train.seed", Kind::kInteger, "Seed of data order, random weights, dropout and rounding.")
          .to(section, &TrainConfig::seed)
          .least(0)
          .alias("seed"));
  out.push_back(
      Row("train.dropout", Kind::kNumber,
          "Dropout probability at every place that the architecture has for it (GPT-2: embeddings, "
          "residuals, attention weights; Llama family: attention weights, which then leave "
          "the flash kernel and take longer); `config`: the rates of the model's config.json.")
          .to(section, &TrainConfig::dropout)
          .least(0)
          .below(1)
          .unset("config"));
  out.push_back(Row("train.freeze", Kind::kTexts,
                    "Patterns (* and ?) of names of tensors that are not trained.")
                    .to(section, &TrainConfig::freeze)
                    .usually("none"));
  out.push_back(
      Row("train.on_nonfinite", Kind::kChoice,
          "When a loss or gradient is not finite: stop, or skip the step; ten in a row end the "
          "run. Overflows of fp16 go by the loss scale instead.")
          .to(section, &TrainConfig::on_nonfinite)
          .one_of({"stop", "skip"}));
  out.push_back(Row("train.stall_timeout", Kind::kDuration,
                    "End the run when nothing moves for so long; 0: never.")
                    .to(section, &TrainConfig::stall_timeout)
                    .least(0));
}

void eval_rows(std::vector<Option>& out) {
  out.push_back(Row("eval.every", Kind::kInteger, "Steps between evaluations.")
                    .to(&RunConfig::eval, &EvalConfig::every)
                    .least(1)
                    .in("steps")
                    .alias("eval_steps")
                    .usually("auto (at the end)"));
  out.push_back(Row("eval.steps", Kind::kInteger,
                    "Micro-batches per evaluation, each of train_micro_batch_size_per_gpu rows.")
                    .to(&RunConfig::eval, &EvalConfig::steps)
                    .least(1)
                    .in("micro-batches")
                    .usually("auto (all)"));
  out.push_back(
      Row("eval.sample", Kind::kText, "A prompt that the model continues at each evaluation.")
          .to(&RunConfig::eval, &EvalConfig::sample)
          .usually("none"));
}

void memory_rows(std::vector<Option>& out) {
  constexpr double kLeast = 1 << 20;
  out.push_back(
      Row("memory.device", Kind::kSize,
          "Budget per GPU; without a GPU a host arena that plays its part, counted inside host.")
          .to(&RunConfig::memory, &MemoryConfig::device)
          .least(kLeast)
          .usually("auto (free - reserve; without a GPU a quarter of host)"));
  out.push_back(
      Row("memory.host", Kind::kSize, "Budget per machine: all that the processes keep in RAM.")
          .to(&RunConfig::memory, &MemoryConfig::host)
          .least(kLeast)
          .usually("auto (the smaller of cgroup limit and free memory, less 2 GiB or 10 %)"));
  out.push_back(Row("memory.nvme", Kind::kDrives,
                    "List of {path, capacity, endurance}: folders for swap files; capacity is auto "
                    "(free - 10 %) or a "
                    "size, endurance the bytes the drive may be written in its life (600TB).")
                    .to(&RunConfig::memory, &MemoryConfig::nvme)
                    .usually("none"));
  out.push_back(Row("memory.pin", Kind::kBool,
                    "Lock the I/O buffers' pages in memory once, registered with io_uring, as far "
                    "as the limit of locked memory allows. false: none is locked. Same bits.")
                    .to(&RunConfig::memory, &MemoryConfig::pin));
}

Row placement(const std::string& part, const std::string& help) {
  return Row("placement." + part, Kind::kChoice, help)
      .one_of({"device", "host", "nvme"})
      .also("gpu", "device")
      .also("cuda", "device")
      .also("cpu", "host");
}

void placement_rows(std::vector<Option>& out) {
  const auto section = &RunConfig::placement;
  out.push_back(Row("placement", Kind::kChoice,
                    "`auto`: the planner chooses for every piece; also takes back what DeepSpeed's "
                    "offload keys pin.")
                    .one_of({"auto"})
                    .usually("auto"));
  out.push_back(placement("weights", "Where working weights live.")
                    .to(section, &PlacementConfig::weights)
                    .alias("zero_optimization.offload_param.device")
                    .alias("zero_optimization.cpu_offload_param")
                    .alias("zero_optimization.cpu_offload_params"));
  out.push_back(placement("optimizer", "Where master weights and moments live.")
                    .to(section, &PlacementConfig::optimizer)
                    .alias("zero_optimization.offload_optimizer.device")
                    .alias("zero_optimization.cpu_offload"));
  out.push_back(placement("gradients", "Where accumulated gradients wait for the update.")
                    .to(section, &PlacementConfig::gradients));
  out.push_back(placement("activations", "Where stage inputs wait for the backward pass.")
                    .to(section, &PlacementConfig::activations)
                    .alias("activation_checkpointing.cpu_checkpointing"));
}

void step_rows(std::vector<Option>& out) {
  out.push_back(Row("step.group", Kind::kInteger, "Micro-batches per visit of a stage.")
                    .to(&RunConfig::step, &StepConfig::group)
                    .least(1)
                    .most(1 << 20)
                    .in("micro-batches"));
  out.push_back(
      Row("step.recompute", Kind::kBool,
          "Recompute activations in the backward pass (true) or keep them all (false). Auto "
          "keeps those of as many of the last layers as memory is left for and make steps "
          "faster.")
          .to(&RunConfig::step, &StepConfig::recompute)
          .alias("gradient_checkpointing"));
  out.push_back(
      Row("step.overlap", Kind::kBool, "Update beside the next forward pass. Same bits either way.")
          .to(&RunConfig::step, &StepConfig::overlap));
  out.push_back(
      Row("step.speculate", Kind::kChoice,
          "Update during backward, before the norm to clip by is known; a step that clips "
          "after all is updated again. auto: where the plan is faster so, while clipping is rare; "
          "always: wherever memory and slots allow it (the plan says where not). Same bits either "
          "way.")
          .to(&RunConfig::step, &StepConfig::speculate)
          .one_of({"auto", "never", "always"}));
}

}  // namespace

std::vector<Option> own_options() {
  std::vector<Option> out;
  model_rows(out);
  data_rows(out);
  train_rows(out);
  eval_rows(out);
  memory_rows(out);
  placement_rows(out);
  step_rows(out);
  return out;
}

}  // namespace zinf::config
