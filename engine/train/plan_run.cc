#include "engine/train/plan_run.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <limits>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/str.h"
#include "engine/config/batch.h"
#include "engine/config/reference.h"
#include "engine/train/hardware_file.h"
#include "nvme/directory.h"
#include "nvme/profile.h"

namespace zinf::train {

namespace {

// What libraries keep once they have computed something: less than this was seen.
constexpr Bytes kFirstCalls = 24 * kMiB;
constexpr Bytes kProbeBytes = 96 * kMiB;

optim::Algorithm algorithm(const config::OptimizerConfig& optimizer) {
  switch (optimizer.type) {
    case config::OptimizerType::kAdamW:
      return optim::Algorithm::kAdamW;
    case config::OptimizerType::kAdam:
      return optimizer.adam_w_mode ? optim::Algorithm::kAdamW : optim::Algorithm::kAdam;
    case config::OptimizerType::kLion:
      return optim::Algorithm::kLion;
    case config::OptimizerType::kAdagrad:
      return optim::Algorithm::kAdagrad;
    case config::OptimizerType::kSgd:
      return optim::Algorithm::kSgd;
  }
  return optim::Algorithm::kAdamW;
}

nvme::EngineKind engine_kind(config::IoEngine engine) {
  return engine == config::IoEngine::kIoUring  ? nvme::EngineKind::kIoUring
         : engine == config::IoEngine::kLibaio ? nvme::EngineKind::kLibaio
                                               : nvme::EngineKind::kThreads;
}

std::optional<plan::Tier> tier(const std::optional<config::Tier>& from) {
  if (!from) return std::nullopt;
  return static_cast<plan::Tier>(static_cast<int>(*from));
}

// The profile of every drive; empty when one lacks a profile, or has one of another drive (said
// once where that leaves others unused).
std::vector<nvme::NvmeProfile> tuned_profiles(const config::RunConfig& config) {
  std::vector<nvme::NvmeProfile> profiles;
  std::string without, with;
  for (const config::NvmeDrive& drive : config.memory.nvme) {
    const auto profile = nvme::load_profile(drive.path);
    (profile ? with : without) = drive.path;
    if (profile) profiles.push_back(*profile);
  }
  if (!with.empty() && !without.empty()) {
    log::warning_once(str("the profile in ", with, " is not used: there is none in ", without,
                          " (measure it too: zinf tune ", without, ")"));
  }
  if (!without.empty()) return {};
  for (std::size_t i = 0; i < profiles.size(); ++i) {
    const std::string& folder = config.memory.nvme[i].path;
    const std::string stale = stale_reason(profiles[i], folder);
    if (!stale.empty()) {
      log::warning_once(str("the profile in ", folder, " is not used: ", stale,
                            " (measure again: zinf tune ", folder, ")"));
      return {};
    }
  }
  return profiles;
}

Bytes file_size_limit() {
  struct rlimit limit {};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::numeric_limits<Bytes>::max();
  }
  return limit.rlim_cur;
}

}  // namespace

void say_notes(const config::LoadResult& loaded) {
  for (const config::Note& note : loaded.notes) log::info(note.text);
  for (const std::string& line : config::describe(loaded.config)) {
    const bool filled_in = line.find(" (auto, ") != std::string::npos;
    if (filled_in && line.find(" = auto ") == std::string::npos) log::info(line);
  }
}

void show_settings(const config::RunConfig& config) {
  std::cout << "Settings\n";
  for (const std::string& line : config::describe(config)) std::cout << "  " << line << "\n";
}

void refuse_unsupported(const config::RunConfig& config) {
  if (config.checkpoint.keep > 1 && config.checkpoint.slots == 1) {
    throw Error(
        ErrorKind::kUsage,
        "checkpoint.keep above 1 needs checkpoint.slots: 2: while one slot is copied, steps "
        "write the other",
        "set checkpoint.slots: 2, or checkpoint.keep: 1");
  }
}

optim::Format optimizer_format(const config::RunConfig& config, model::DType compute_type) {
  const bool bf16 = compute_type == model::DType::kBFloat16;
  optim::Format format;
  format.algorithm = algorithm(config.optimizer);
  format.weight = bf16                                     ? optim::WeightDtype::kBf16
                  : compute_type == model::DType::kFloat16 ? optim::WeightDtype::kFp16
                                                           : optim::WeightDtype::kFp32;
  const auto master = config.optimizer.master_weights.value_or(bf16 ? config::MasterWeights::kSplit
                                                                    : config::MasterWeights::kFp32);
  format.master = static_cast<optim::MasterWeights>(static_cast<int>(master));
  format.moments = static_cast<optim::StateDtype>(static_cast<int>(config.optimizer.state_dtype));
  format.has_momentum = config.optimizer.momentum != 0;
  const std::string_view reason = optim::why_invalid(format);
  if (!reason.empty())
    throw Error(ErrorKind::kUsage, str("optimizer: ", reason),
                "change optimizer.master_weights or bf16");
  return format;
}

std::string optimizer_name(const optim::Format& format) {
  return str(name(format.algorithm), ", weights ", name(format.weight), ", master ",
             name(format.master), ", moments ", name(format.moments));
}

namespace {
std::string optimizer_setting(const config::RunConfig& config) {
  const config::OptimizerConfig& optimizer = config.optimizer;
  const optim::Hyper hyper = optimizer_hyper(config);
  const bool adam = optimizer.type == config::OptimizerType::kAdam ||
                    optimizer.type == config::OptimizerType::kAdamW;
  std::string text;
  if (adam || optimizer.type == config::OptimizerType::kLion)
    text += str("betas ", hyper.beta1, " and ", hyper.beta2, ", ");
  if (adam || optimizer.type == config::OptimizerType::kAdagrad)
    text += str("eps ", hyper.eps, ", ");
  if (optimizer.type == config::OptimizerType::kSgd) text += str("momentum ", hyper.momentum, ", ");
  return text + (optimizer.decoupled_decay() ? "" : "L2 ") +
         str("weight decay ", optimizer.weight_decay);
}
}  // namespace

std::string optimizer_line(const config::RunConfig& config, const optim::Optimizer& optimizer,
                           const optim::Pool& pool) {
  return str("optimizer: ", name(optimizer.format().algorithm), " (", optimizer_setting(config),
             ") with ", name(optimizer.isa()), " kernels on ", pool.threads(), " threads",
             pool.nodes() > 1 ? str(" of ", pool.nodes(), " NUMA nodes") : std::string());
}

optim::Hyper optimizer_hyper(const config::RunConfig& config) {
  optim::Hyper hyper;
  const auto betas = config.optimizer.effective_betas();
  hyper.beta1 = betas[0];
  hyper.beta2 = betas[1];
  hyper.eps = config.optimizer.eps;
  hyper.momentum = config.optimizer.momentum;
  return hyper;
}

int optimizer_threads(const config::RunConfig& config) {
  return config.optimizer.threads ? static_cast<int>(*config.optimizer.threads)
                                  : optim::default_threads();
}

optim::LossScaler make_loss_scaler(const config::RunConfig& config,
                                   const std::optional<optim::LossScaleState>& from) {
  optim::LossScaleOptions options;
  options.loss_scale = config.fp16.loss_scale;
  options.initial_scale_power = static_cast<int>(config.fp16.initial_scale_power);
  options.loss_scale_window = config.fp16.loss_scale_window;
  options.hysteresis = static_cast<int>(config.fp16.hysteresis);
  options.consecutive_hysteresis = config.fp16.consecutive_hysteresis;
  options.min_loss_scale = config.fp16.min_loss_scale;
  return from ? optim::LossScaler(options, *from) : optim::LossScaler(options);
}

std::vector<plan::StateLayout> state_layouts(const optim::Format& format) {
  std::vector<plan::StateLayout> layouts;
  for (const optim::StateSpec& state : optim::schema(format)) {
    layouts.push_back(
        {std::string(state.name), state.bytes(model::kTile), layouts.empty(), state.is_moment});
  }
  return layouts;
}

std::vector<optim::Group> decay_groups(const config::RunConfig& config) {
  return {
      {1.0, config.optimizer.weight_decay},
      {1.0, config.optimizer.no_decay_on_norms_and_biases ? 0.0 : config.optimizer.weight_decay}};
}

std::vector<std::vector<optim::GroupRange>> decay_ranges(const model::ModelSpec& model) {
  std::vector<std::vector<optim::GroupRange>> ranges;
  for (const model::PieceSpec& piece : model.pieces) {
    std::vector<optim::GroupRange> of_piece;
    for (const model::TensorSpec& tensor : piece.tensors) {
      of_piece.push_back({tensor.offset, tensor.elements, tensor.norm_or_bias ? 1 : 0});
    }
    ranges.push_back(std::move(of_piece));
  }
  return ranges;
}

std::int64_t row_length(const config::RunConfig& config, const ModelInput& model) {
  if (model.model.spec.vocabulary == 0) return 1;
  const std::int64_t longest = model.model.spec.max_length;
  const std::int64_t length =
      config.data.seq_len.value_or(longest > 0 ? std::min<std::int64_t>(longest, 2048) : 2048);
  if (longest > 0 && length > longest) {
    throw Error(ErrorKind::kUsage,
                str("data.seq_len: ", length, " is more than the model's ", longest, " positions"),
                str("set data.seq_len to at most ", longest));
  }
  return length;
}

namespace {

bool would_fit(const config::RunConfig& config, const ModelInput& model, const BatchShape& batch,
               std::int64_t length) {
  const plan::ShapeClass shape{static_cast<int>(batch.micro), static_cast<int>(length)};
  const StageProbe probe = estimate_stages(model.model.spec, shape);
  return fits(plan_request(config, model, batch, shape, probe, plan::Hardware{},
                           budgets_now(config, model.compute_type())));
}

}  // namespace

void refuse_too_large(const config::RunConfig& config, const ModelInput& model,
                      const BatchShape& batch, const plan::ShapeClass& shape,
                      const plan::Budgets& budgets, Bytes memory) {
  const auto request = [&](const StageProbe& probe, const plan::Budgets& given) {
    return plan_request(config, model, batch, shape, probe, plan::Hardware{}, given);
  };
  StageProbe none;
  none.workspace.resize(model.model.spec.stages.size());
  if (fits(request(none, budgets))) return;
  // Measured numbers are those that a change must reach.
  const Bytes to_measure = kFirstCalls + probe_bytes(model.model.spec, shape, budgets.device);
  if (budgets.host_base + to_measure <= memory) return;
  log::info("there is too little memory to measure a layer: what a change must reach is estimated");
  plan::Budgets estimated = budgets;
  estimated.host_base += kFirstCalls;
  make_plan(request(estimate_stages(model.model.spec, shape), estimated));
}

namespace {

// A program names every call: what takes minutes to plan is a mistyped number.
void refuse_too_many(const BatchShape& shape, const ModelInput& model) {
  constexpr std::int64_t kMostCalls = 1 << 16;
  const std::int64_t most = kMostCalls / std::ssize(model.model.spec.stages);
  if (shape.accumulation <= most) return;
  throw Error(
      ErrorKind::kUsage,
      str("gradient_accumulation_steps: expected at most ", most, " micro-batches a step for ",
          std::ssize(model.model.spec.stages), " stages, found ", shape.accumulation),
      "raise train_micro_batch_size_per_gpu, or lower train_batch_size");
}

BatchShape choose_batch(const config::RunConfig& config, const ModelInput& model,
                        std::int64_t length, const BatchShape& so_far) {
  constexpr std::int64_t kMostRows = 64;
  const config::Batch batch = resolve_batch(config, 1);
  if (batch.micro) return {*batch.micro, *batch.accumulation};
  // A run keeps the rows of its steps, and their cut where that fits, whatever memory there is now.
  const std::int64_t rows_so_far = so_far.micro * so_far.accumulation;
  for (std::int64_t micro = so_far.micro; micro > 0; --micro) {
    const BatchShape shape{micro, rows_so_far / micro};
    if (rows_so_far % micro != 0 || batch.per_rank.value_or(rows_so_far) != rows_so_far ||
        config.batch.accumulation.value_or(shape.accumulation) != shape.accumulation)
      continue;
    if (micro > 1 && !would_fit(config, model, shape, length)) continue;
    return shape;
  }
  for (std::int64_t rows = kMostRows; rows > 1; rows /= 2) {
    if (!batch.allows(rows)) continue;
    const config::Batch tried = with_micro(batch, rows);
    const BatchShape shape{*tried.micro, *tried.accumulation};
    refuse_too_many(shape, model);
    if (!would_fit(config, model, shape, length)) continue;
    log::info(str("train_micro_batch_size_per_gpu: auto -> ", rows,
                  ", the largest power of two that fits"));
    return shape;
  }
  const config::Batch one = with_micro(batch, 1);
  return {*one.micro, *one.accumulation};
}

}  // namespace

BatchShape batch_shape(const config::RunConfig& config, const ModelInput& model,
                       std::int64_t length, const BatchShape& so_far) {
  const BatchShape shape = choose_batch(config, model, length, so_far);
  refuse_too_many(shape, model);
  if (config.step.group && *config.step.group > shape.accumulation) {
    log::info(str("step.group: ", *config.step.group, " -> ", shape.accumulation,
                  ", all micro-batches of a step"));
  }
  return shape;
}

std::optional<nvme::StoreOptions> store_options(const config::RunConfig& config,
                                                const std::string& area) {
  if (config.memory.nvme.empty()) return std::nullopt;
  nvme::StoreOptions options;
  for (const config::NvmeDrive& drive : config.memory.nvme) {
    nvme::DriveOptions of_drive;
    of_drive.path = drive.path;
    of_drive.capacity = drive.capacity.value_or(0);
    options.drives.push_back(of_drive);
  }
  options.area = area;
  const auto set = [&](nvme::DriveSettings tuned) {
    if (config.io.engine) tuned.engine = engine_kind(*config.io.engine);
    tuned.block_size = config.io.block_size.value_or(tuned.block_size);
    tuned.depth = static_cast<int>(config.io.depth.value_or(tuned.depth));
    return tuned;
  };
  static_cast<nvme::DriveSettings&>(options) = set(options);
  const auto profiles = tuned_profiles(config);
  for (std::size_t i = 0; i < profiles.size(); ++i) {
    const nvme::NvmeProfile& profile = profiles[i];
    options.drives[i].settings = set({profile.engine, profile.block_size, profile.depth});
    options.drives[i].weight = profile.mixed_gb_per_second;  // traffic is shared out by rate
  }
  options.threads = static_cast<int>(config.io.threads.value_or(0));
  options.stall_seconds = config.train.stall_timeout;
  return options;
}

bool pins_memory(const config::RunConfig& config) {
  const nvme::StoreOptions store = store_options(config, "zinf").value_or(nvme::StoreOptions{});
  const auto may_pin = [](nvme::EngineKind kind) {
    return kind == nvme::EngineKind::kAuto || kind == nvme::EngineKind::kIoUring;
  };
  const bool asked =
      store.drives.empty() ||
      std::any_of(store.drives.begin(), store.drives.end(), [&](const nvme::DriveOptions& drive) {
        return may_pin(store.settings_of(drive).engine);
      });
  return config.memory.pin && asked && nvme::why_unavailable(nvme::EngineKind::kIoUring, 1).empty();
}

nvme::StoreOptions engine_store(const std::string& folder) {
  static std::atomic<int> count{0};
  nvme::StoreOptions options;
  options.drives.emplace_back();
  options.drives.back().path = folder;
  options.area = str("engine-", ::getpid(), "-", count.fetch_add(1));
  return options;
}

plan::Pins pins(const config::RunConfig& config) {
  plan::Pins result;
  result.weights = tier(config.placement.weights);
  result.optimizer = tier(config.placement.optimizer);
  result.gradients = tier(config.placement.gradients);
  result.activations = tier(config.placement.activations);
  if (config.step.group) result.group = static_cast<int>(*config.step.group);
  result.recompute = config.step.recompute;
  return result;
}

plan::Hardware measure_hardware(const config::RunConfig& config, const optim::Optimizer& optimizer,
                                optim::Pool& pool, const nvme::BenchOptions& bench) {
  plan::Hardware hardware;
  hardware.origin = "measured at start";
  for (const config::NvmeDrive& drive : config.memory.nvme) {
    if (!nvme::is_in_memory(drive.path)) continue;
    log::warning(
        str("memory.nvme: ", drive.path,
            " lies in memory (tmpfs), not on a drive; what is put there counts in no budget"));
  }
  const auto machine = tuned_hardware(config);
  const bool same_optimizer = machine && machine->optimizer == optimizer_name(optimizer.format()) &&
                              pool.threads() == optim::default_threads();
  if (!same_optimizer) probe_host(optimizer, pool, hardware);
  if (machine) {
    hardware.origin = "from zinf-hardware.yaml";
    hardware.host_to_device = machine->copy_to_device_gb_per_second * 1e9;
    hardware.device_to_host = machine->copy_from_device_gb_per_second * 1e9;
    if (same_optimizer)
      hardware.optimizer_bytes_per_second = machine->optimizer_gb_per_second * 1e9;
    // The short probe fits into the cache.
    hardware.optimizer_bytes_per_second =
        std::min(hardware.optimizer_bytes_per_second, machine->host_gb_per_second * 1e9);
  }
  const auto profiles = tuned_profiles(config);
  if (!profiles.empty()) {
    hardware.origin += ", drives from zinf-nvme.yaml";
    for (const nvme::NvmeProfile& profile : profiles) {
      hardware.drives.push_back({profile.read_gb_per_second * 1e9,
                                 profile.write_gb_per_second * 1e9,
                                 profile.mixed_gb_per_second * 1e9});
    }
    combine_drives(hardware);
    return hardware;
  }
  // A small drive, or a limit on file sizes, must not fail the probe where the run itself fits.
  if (const auto store = store_options(config, "zinf")) {
    Bytes room = std::min(budgets(config, 0).nvme, file_size_limit());
    // An area that is there already is room for the run, and none for the probe.
    for (const config::NvmeDrive& drive : config.memory.nvme)
      room = std::min(room, nvme::free_bytes(drive.path));
    probe_drives(*store, std::min(kProbeBytes, room / 4 / kMiB * kMiB), hardware, bench);
  }
  return hardware;
}

nvme::StoreOptions state_store(const config::RunConfig& config, const std::string& run_folder,
                               const std::string& area, const plan::Hardware& hardware) {
  if (auto options = store_options(config, area)) {
    for (std::size_t i = 0; i < hardware.drives.size(); ++i)
      options->drives[i].weight = hardware.drives[i].mixed;
    return *options;
  }
  nvme::StoreOptions options;
  nvme::DriveOptions drive;
  drive.path = run_folder;
  options.drives.push_back(drive);
  options.area = area;
  options.stall_seconds = config.train.stall_timeout;
  return options;
}

namespace {
plan::EarlyUpdates early_updates(config::Speculate speculate) {
  switch (speculate) {
    case config::Speculate::kNever:
      return plan::EarlyUpdates::kNever;
    case config::Speculate::kAlways:
      return plan::EarlyUpdates::kAlways;
    case config::Speculate::kAuto:
      break;
  }
  return plan::EarlyUpdates::kAuto;
}
}  // namespace

plan::PlanRequest plan_request(const config::RunConfig& config, const ModelInput& model,
                               const BatchShape& batch, const plan::ShapeClass& shape,
                               const StageProbe& probe, const plan::Hardware& hardware,
                               const plan::Budgets& budgets) {
  plan::PlanRequest request;
  request.model = model.model.spec;
  request.states = state_layouts(optimizer_format(config, model.compute_type()));
  if (config.gradients.dtype == config::GradientDtype::kBf16)
    request.gradient_type = model::DType::kBFloat16;
  request.shape = shape;
  request.micro_batches = static_cast<int>(batch.accumulation);
  request.workspace = probe.workspace;
  request.hardware = hardware;
  StageProbe tuned = probe;
  const auto machine = probe.seconds.empty() ? std::nullopt : tuned_hardware(config);
  if (machine) use_tuned_stages(machine->stages, request.model, shape, tuned);
  request.hardware.stages = tuned.seconds;
  request.budgets = budgets;
  request.pins = pins(config);
  request.overlap = config.step.overlap;
  request.slots = static_cast<int>(config.checkpoint.slots);
  request.may_drop_slot = config.checkpoint.keep == 1;
  request.clips = config.gradient_clipping > 0;
  request.pin = pins_memory(config);
  request.early_updates = early_updates(config.step.speculate);
  // Each step where that costs nothing but a sync: see contract. Anything rarer commits drained, by
  // the step loop.
  const auto& every = config.checkpoint.every;
  if (every && (!every->steps || *every->steps != 1)) request.commit_each_step = false;
  return request;
}

}  // namespace zinf::train
