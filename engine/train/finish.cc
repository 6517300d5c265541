#include "engine/train/finish.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu_optim/convert.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/machine.h"
#include "engine/base/signals.h"
#include "engine/base/str.h"

namespace zinf::train {

namespace {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Without the first two steps, as far as there are more.
std::vector<double> steady(const std::vector<double>& steps) {
  return steps.size() > 2 ? std::vector(steps.begin() + 2, steps.end()) : steps;
}

// A tensor's range need not start on a page: whole windows of the piece are read, and the latest
// one is kept.
class MasterReader {
 public:
  MasterReader(step::StateAccess& states, const model::ModelSpec& model, int slot)
      : states_(states),
        model_(model),
        slot_(slot),
        window_(static_cast<std::size_t>(step::StateAccess::kElements)) {}

  void read(int piece, std::int64_t first, std::int64_t count, float* to) {
    while (count > 0) {
      const std::int64_t start =
          first / step::StateAccess::kElements * step::StateAccess::kElements;
      const std::int64_t size =
          std::min(step::StateAccess::kElements, model_.pieces[piece].elements - start);
      if (piece != piece_ || start != start_) {
        states_.read_master(piece, slot_, start, size, window_.data());
        piece_ = piece;
        start_ = start;
      }
      const std::int64_t part = std::min(count, start + size - first);
      std::memcpy(to, window_.data() + (first - start),
                  static_cast<std::size_t>(part) * sizeof(float));
      to += part;
      first += part;
      count -= part;
    }
  }

 private:
  step::StateAccess& states_;
  const model::ModelSpec& model_;
  int slot_;
  std::vector<float> window_;
  int piece_ = -1;
  std::int64_t start_ = -1;
};

}  // namespace

LeastTraffic least_traffic(const plan::Plan& plan) {
  LeastTraffic least;
  double parameters = 0;
  for (std::size_t p = 0; p < plan.model->pieces.size(); ++p) {
    const model::PieceSpec& piece = plan.model->pieces[p];
    const plan::PiecePlacement& placement = plan.input.placement.pieces[p];
    const double elements = static_cast<double>(piece.parameters);
    parameters += elements;
    const auto per_element = [&](std::size_t state) {
      return static_cast<double>(plan.input.states[state].bytes_per_tile) /
             static_cast<double>(model::kTile);
    };
    if (placement.weights == plan::Tier::kNvme) least.read += elements * per_element(0) * 2;
    if (!piece.trainable) continue;
    if (placement.weights == plan::Tier::kNvme) least.write += elements * per_element(0);
    for (std::size_t s = 1;
         s < plan.input.states.size() && placement.optimizer == plan::Tier::kNvme; ++s) {
      least.read += elements * per_element(s);
      least.write += elements * per_element(s);
    }
    if (placement.gradients == plan::Tier::kNvme) {
      const auto gradient = static_cast<double>(model::size_of(plan.input.gradient_type));
      least.read += elements * gradient;
      least.write += elements * gradient;
    }
  }
  least.read /= parameters;
  least.write /= parameters;
  return least;
}

observe::Summary make_summary(const config::RunConfig& config, const plan::Plan& plan,
                              Session& session, const LoopResult& result) {
  observe::Summary summary;
  summary.steps = static_cast<std::uint64_t>(result.steps);
  summary.final_loss = result.final_loss;
  if (plan.model->vocabulary == 0) summary.unit = "samples";
  summary.parameters = static_cast<std::uint64_t>(plan.model->parameters());
  const bool hurries = result.stopped_by != 0 && config.checkpoint.grace > 0;
  const double give_up = now_seconds() + config.checkpoint.grace / 2;
  const step::Trainer& trainer = session.trainer();
  const auto hashes =
      session.states().hashes(trainer.version(), trainer.slot(), trainer.moments_are_zero(),
                              [&] { return !hurries || now_seconds() < give_up; });
  summary.weights_hash = hashes.weights;
  summary.state_hash = hashes.state;
  summary.step_seconds_measured = median(steady(result.step_seconds));
  summary.step_seconds_predicted = plan.forecast.step_seconds;
  summary.step_seconds_ideal = plan.forecast.ideal_seconds;
  if (summary.step_seconds_measured > 0)
    summary.efficiency = plan.forecast.ideal_seconds / summary.step_seconds_measured;
  summary.bottleneck = busiest_lane(result.lanes);
  summary.predicted_bottleneck = plan::lane_name(plan.forecast.bottleneck);
  summary.exposed_optimizer_seconds = median(steady(result.exposed_optimizer_seconds));
  summary.predicted_exposed_optimizer_seconds = plan.forecast.exposed_optimizer_seconds;
  summary.speculated_steps = static_cast<std::uint64_t>(session.trainer().speculated());
  summary.redo_steps = static_cast<std::uint64_t>(session.trainer().redone());
  summary.tokens_per_second = result.made > 0 && summary.step_seconds_measured > 0
                                  ? static_cast<double>(result.tokens) /
                                        static_cast<double>(result.made) /
                                        summary.step_seconds_measured
                                  : 0;
  summary.device = {plan.device_bytes, session.runner().peak_bytes(plan::Arena::kDevice),
                    plan.budgets.device,
                    plan.programs.at_peak[static_cast<int>(plan::Arena::kDevice)]};
  summary.host = {plan.host_bytes, peak_resident_bytes(), plan.budgets.host,
                  plan.programs.at_peak[static_cast<int>(plan::Arena::kHost)]};
  summary.host.by_class["runtime base"] = plan.budgets.host_base;
  if (plan.budgets.device_in_host) summary.host.by_class["device arena"] = plan.device_bytes;
  summary.process = {plan.host_bytes, peak_resident_bytes(), plan.budgets.host, {}};
  summary.pinned = {plan.pinned_bytes, session.tiers().pinned_bytes(), 0, {}};
  summary.nvme = {plan.nvme_bytes, session.tiers().nvme_bytes(), plan.budgets.nvme, {}};
  const double parameter_steps =
      static_cast<double>(plan.model->parameters()) *
      static_cast<double>(std::max<std::int64_t>(result.steady_steps, 1));
  const LeastTraffic least = least_traffic(plan);
  const auto lane = [&](observe::Lane shown, plan::Lane of, double least_bytes) {
    observe::LaneSummary& to = summary.lanes[shown];
    const step::LaneTotals& totals = result.lanes[static_cast<int>(of)];
    if (result.steady_seconds > 0) to.busy_share = totals.busy_seconds / result.steady_seconds;
    if (plan.forecast.step_seconds > 0) {
      to.predicted_busy_share =
          plan.forecast.lanes[static_cast<int>(of)].busy_seconds / plan.forecast.step_seconds;
    }
    to.bytes_per_parameter_step = static_cast<double>(totals.bytes) / parameter_steps;
    to.least_bytes_per_parameter_step = least_bytes;
    const auto ratio = result.profile_ratio.find(std::string(lane_name(shown)));
    if (ratio != result.profile_ratio.end()) to.profile_ratio = ratio->second;
  };
  lane(observe::Lane::kCompute, plan::Lane::kCompute, 0);
  lane(observe::Lane::kH2d, plan::Lane::kH2D, 0);
  lane(observe::Lane::kD2h, plan::Lane::kD2H, 0);
  lane(observe::Lane::kNvmeRead, plan::Lane::kRead, least.read);
  lane(observe::Lane::kNvmeWrite, plan::Lane::kWrite, least.write);
  lane(observe::Lane::kOptimizer, plan::Lane::kOptimizer, 0);
  if (!config.memory.nvme.empty()) {
    for (const nvme::DriveCounters& drive : session.tiers().counters())
      summary.written_bytes[drive.path] = drive.lane.bytes_written;
    for (const config::NvmeDrive& drive : config.memory.nvme) {
      if (drive.endurance) summary.endurance[drive.path] = *drive.endurance;
    }
  }
  summary.total_seconds = result.total_seconds;
  summary.tokens = static_cast<std::uint64_t>(result.tokens);
  if (result.stopped_by != 0) summary.stopped_by = signal_name(result.stopped_by);
  summary.eval_loss = result.eval_loss;
  return summary;
}

model::DType export_type(const config::RunConfig& config, model::DType compute_type) {
  if (config.export_.dtype) {
    return *config.export_.dtype == config::ExportDtype::kBf16 ? model::DType::kBFloat16
                                                               : model::DType::kFloat32;
  }
  return compute_type == model::DType::kBFloat16 ? model::DType::kBFloat16 : model::DType::kFloat32;
}

Bytes shard_bytes(const config::RunConfig& config) {
  return config.export_.single_file ? 0 : config.export_.shard_size;
}

void export_at_end(const config::RunConfig& config, const ModelInput& model,
                   step::StateAccess& states, int slot, const std::string& path) {
  const model::ExportResult exported = export_model(
      model, states, slot, path, export_type(config, model.compute_type()), shard_bytes(config));
  log::info(str("model exported to ", exported.path, " (", exported.tensors, " tensors, ",
                format_bytes(exported.weight_bytes), ")"));
}

model::ExportResult export_model(const ModelInput& model, step::StateAccess& states, int slot,
                                 const std::string& path, model::DType type, Bytes shard_bytes,
                                 const std::atomic<bool>* give_up) {
  const model::ModelSpec& spec = model.model.spec;
  MasterReader reader(states, spec, slot);
  std::vector<float> master;
  const auto values = [&](int piece, std::int64_t first, std::int64_t count, void* into) {
    if (give_up != nullptr && *give_up) throw Error(ErrorKind::kFailed, "the export is given up");
    if (type == model::DType::kFloat32) {
      reader.read(piece, first, count, static_cast<float*>(into));
      return;
    }
    master.resize(static_cast<std::size_t>(count));
    reader.read(piece, first, count, master.data());
    optim::master_to_bf16(master.data(), static_cast<std::uint16_t*>(into), count);
  };
  model::ExportSource source;
  if (model.tensors) {
    source.folder = &*model.folder;
    source.map = &*model.tensors;
  } else {
    source.config_text = model.config_text;
  }
  model::ExportOptions options;
  options.type = type;
  options.shard_bytes = shard_bytes;
  return export_hf(spec, source, values, path, options);
}

}  // namespace zinf::train
