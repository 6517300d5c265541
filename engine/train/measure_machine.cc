#include "engine/train/measure_machine.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <vector>

#include "cpu_optim/bench.h"
#include "engine/base/clock.h"
#include "engine/base/machine.h"
#include "engine/base/str.h"
#include "engine/model/torch_compute.h"
#include "engine/model/torch_runtime.h"
#include "engine/train/model_input.h"
#include "engine/train/plan_run.h"
#include "engine/train/probe.h"
#include "gpu/device.h"
#include "gpu/host_memory.h"

namespace zinf::train {

namespace {

constexpr const char* kDefaultModel = R"({"model_type": "gpt2", "vocab_size": 50257,
  "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "activation_function": "gelu_new",
  "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "tie_word_embeddings": true})";
constexpr plan::ShapeClass kDefaultShape{1, 256};
constexpr Bytes kCopied = 256 * kMiB;                     // beyond any cache
constexpr std::int64_t kUpdated = std::int64_t{1} << 24;  // elements

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Subject {
  model::Model model;
  plan::ShapeClass shape = kDefaultShape;
  optim::Format format;
};

Subject subject_of(const std::optional<config::RunConfig>& config) {
  Subject subject;
  if (!config) {
    model::ModelOptions options;
    options.compute_type =
        model::has_bf16_hardware() ? model::DType::kBFloat16 : model::DType::kFloat32;
    subject.model = load_model(model::JsonConfig::parse(kDefaultModel, "GPT-2 125M"), options);
    subject.format = optimizer_format(config::RunConfig{}, options.compute_type);
    return subject;
  }
  ModelInput input = open_model(*config, false);
  const std::int64_t length = row_length(*config, input);
  const BatchShape batch = batch_shape(*config, input, length);
  subject.shape = {static_cast<int>(batch.micro), static_cast<int>(length)};
  subject.format = optimizer_format(*config, input.compute_type());
  subject.model = std::move(input.model);
  return subject;
}

// Per stage and kind of call, the median over whole probes.
void measure_compute(const Subject& subject, int repetitions, MachineReport& report) {
  const model::ModelSpec& spec = subject.model.spec;
  model::set_compute_threads(usable_physical_cores());
  const auto compute = make_torch_compute(subject.model);
  std::vector<StageProbe> probes;
  for (int i = 0; i < repetitions; ++i)
    probes.push_back(probe_stages(spec, *compute, subject.shape));
  double flops = 0, seconds = 0;
  for (std::size_t s = 0; s < spec.stages.size(); ++s) {
    if (spec.stages[s].kind == model::StageKind::kLookup) continue;
    const auto middle = [&](double plan::StageSeconds::*member) {
      std::vector<double> values;
      for (const StageProbe& probe : probes) values.push_back(probe.seconds[s].*member);
      return median(std::move(values));
    };
    const plan::StageSeconds of_stage{
        middle(&plan::StageSeconds::forward), middle(&plan::StageSeconds::backward),
        middle(&plan::StageSeconds::backward_kept), middle(&plan::StageSeconds::evaluate)};
    report.file.stages[stage_signature(spec, s, subject.shape)] = of_stage;
    const double positions = static_cast<double>(subject.shape.positions());
    flops += spec.stages[s].forward_flops_per_position * positions +
             spec.stages[s].forward_flops_per_position_pair * positions * subject.shape.length;
    seconds += of_stage.forward;
  }
  report.flops_per_second = seconds > 0 ? flops / seconds : 0;
}

// Both directions at once, as they are in a run.
void measure_copies(int repetitions, HardwareFile& file) {
  const auto device = gpu::make_host_device({2 * kCopied, 0});
  gpu::HostMemory host(2 * kCopied, "a measurement of copies");
  std::memset(host.data(), 1, host.size());
  std::memset(device->arena(), 1, device->arena_bytes());
  std::vector<double> to, from;
  for (int i = 0; i <= repetitions; ++i) {
    std::promise<double> to_done, from_done;
    device->copy(gpu::CopyDirection::kHostToDevice, {{device->arena(), host.data(), kCopied}},
                 [&](double busy) { to_done.set_value(busy); });
    device->copy(gpu::CopyDirection::kDeviceToHost,
                 {{host.data() + kCopied, device->arena() + kCopied, kCopied}},
                 [&](double busy) { from_done.set_value(busy); });
    const double to_seconds = to_done.get_future().get(),
                 from_seconds = from_done.get_future().get();
    if (i == 0) continue;  // warm-up
    to.push_back(static_cast<double>(kCopied) / to_seconds / 1e9);
    from.push_back(static_cast<double>(kCopied) / from_seconds / 1e9);
  }
  file.copy_to_device_gb_per_second = median(to);
  file.copy_from_device_gb_per_second = median(from);
}

}  // namespace

MachineReport measure_machine(const std::optional<config::RunConfig>& config, int repetitions,
                              const std::function<void(const std::string&)>& progress) {
  MachineReport report;
  HardwareFile& file = report.file;
  file.processor = processor_name();
  file.threads = usable_cores();
  const Subject subject = subject_of(config);
  const model::ModelSpec& spec = subject.model.spec;
  report.model =
      str(spec.family, ", ", spec.parameters(), " parameters, ", name(subject.format.weight),
          ", rows ", subject.shape.rows, " x ", subject.shape.length);
  progress(str("compute (", report.model, ")"));
  measure_compute(subject, repetitions, report);
  progress("copies between host and device, both ways at once");
  measure_copies(repetitions, file);
  progress("the optimizer and memory bandwidth");
  optim::Pool pool;
  const optim::BenchRow row =
      optim::bench_update(subject.format, optim::best_isa(), pool, kUpdated, repetitions);
  file.optimizer = optimizer_name(subject.format);
  file.optimizer_gb_per_second = row.gb_per_second;
  file.host_gb_per_second = row.gb_per_second * row.seconds / row.limit_seconds;
  return report;
}

}  // namespace zinf::train
