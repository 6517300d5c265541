#include "engine/plan/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

namespace zinf::plan {

namespace {

std::string tier_row(const char* name, Bytes bytes, Bytes budget) {
  return fmt::format("  {:<8} {:>12} of {:>12}\n", name, format_bytes(bytes),
                     budget == 0 ? "-" : format_bytes(budget));
}

}  // namespace

double textbook_bytes_per_rank(double parameters, int stage, int ranks) {
  const double n = ranks;
  const double optimizer = 12 * (stage >= 1 ? 1 / n : 1);
  const double gradients = 2 * (stage >= 2 ? 1 / n : 1);
  const double weights = 2 * (stage >= 3 ? 1 / n : 1);
  return parameters * (optimizer + gradients + weights);
}

std::string explain(const Plan& plan) {
  std::string out = "Plan\n";
  out += fmt::format("  {} parameters, {} micro-batches a step of {} x {}\n",
                     plan.model->parameters(), plan.input.settings.micro_batches,
                     plan.input.shape.rows, plan.input.shape.length);
  out += fmt::format("  {}\n", describe(plan.input));
  for (const std::string& note : plan.notes) out += fmt::format("  {}\n", note);
  out += "Memory (peak, of budget)\n";
  out += tier_row("device", plan.device_bytes, plan.budgets.device);
  for (const auto& [name, bytes] : plan.programs.at_peak[static_cast<int>(Arena::kDevice)]) {
    if (bytes > 0) out += fmt::format("    {:<54} {:>12}\n", name, format_bytes(bytes));
  }
  out += tier_row("host", plan.host_bytes, plan.budgets.host);
  out += fmt::format("    {:<54} {:>12}\n", "runtime base (libraries, heap, measured)",
                     format_bytes(plan.budgets.host_base));
  if (plan.budgets.device_in_host)
    out += fmt::format("    {:<54} {:>12}\n", "device arena (no GPU: in host memory)",
                       format_bytes(plan.device_bytes));
  for (const auto& [name, bytes] : plan.programs.at_peak[static_cast<int>(Arena::kHost)]) {
    if (bytes > 0) out += fmt::format("    {:<54} {:>12}\n", name, format_bytes(bytes));
  }
  out += fmt::format("  {:<8} {:>12}{}\n", "pinned", format_bytes(plan.pinned_bytes),
                     plan.pinned_bytes > 0 ? " of host, as far as the limit of locked memory allows"
                                           : " (no page is locked)");
  out += tier_row("nvme", plan.nvme_bytes, plan.budgets.nvme);
  const double parameters = static_cast<double>(plan.model->parameters());
  out += fmt::format(
      "Step (predicted): {:.3f} s, ideal {:.3f} s, bottleneck {}, exposed optimizer {:.3f} s\n",
      plan.forecast.step_seconds, plan.forecast.ideal_seconds, lane_name(plan.forecast.bottleneck),
      plan.forecast.exposed_optimizer_seconds);
  if (plan.early)
    out += fmt::format(
        "  {} pieces can be updated during backward: {:.3f} s (exposed optimizer {:.3f} s) a step "
        "that does not clip, {:.3f} s ({:.3f} s) where the update waits for the norm\n",
        plan.input.settings.early_updates, plan.early->step_seconds,
        plan.early->exposed_optimizer_seconds, plan.waiting.step_seconds,
        plan.waiting.exposed_optimizer_seconds);
  for (int lane = 0; lane < kLanes; ++lane) {
    const LaneForecast& forecast = plan.forecast.lanes[lane];
    if (static_cast<Lane>(lane) == Lane::kCommit ||
        (forecast.busy_seconds < 1e-6 && forecast.bytes == 0))
      continue;
    out += fmt::format("  {:<11} {:>8.3f} s", lane_name(static_cast<Lane>(lane)),
                       forecast.busy_seconds);
    if (forecast.bytes > 0)
      out += fmt::format("  {:>11}  {:>6.2f} bytes/parameter", format_bytes(forecast.bytes),
                         static_cast<double>(forecast.bytes) / parameters);
    out += "\n";
  }
  if (plan.unpinned_step_seconds)
    out += fmt::format(
        "Placement as set costs time: {:.3f} s a step, {:.3f} s with --set placement=auto in the "
        "same memory\n",
        plan.forecast.step_seconds, *plan.unpinned_step_seconds);
  if (plan.input.settings.slots == 1) {
    out +=
        "Commits: none before the end. checkpoint.slots: 1 keeps one copy of the state, in half "
        "the space: a kill before the end loses the run\n";
  }
  const std::size_t shown = std::min<std::size_t>(plan.rejected.size(), 3);
  if (shown > 0) out += "Rejected\n";
  for (std::size_t i = 0; i < shown; ++i) {
    out += fmt::format("  {}: {}\n", plan.rejected[i].what, plan.rejected[i].why);
  }
  return out;
}

namespace {
void add_textbook(nlohmann::ordered_json& json, double parameters, int ranks) {
  for (int stage = 0; stage <= 3; ++stage) {
    json["textbook_bytes_per_rank"][std::to_string(stage)] =
        textbook_bytes_per_rank(parameters, stage, ranks);
  }
}
}  // namespace

std::string refusal_json(const model::ModelSpec& model, const Budgets& budgets,
                         const std::string& reason, int ranks) {
  nlohmann::ordered_json json;
  json["fits"] = false;
  json["reason"] = reason;
  json["budget_bytes"] = {
      {"device", budgets.device}, {"host", budgets.host}, {"nvme", budgets.nvme}};
  add_textbook(json, static_cast<double>(model.parameters()), ranks);
  return json.dump(2) + "\n";
}

std::string explain_json(const Plan& plan, int ranks) {
  nlohmann::ordered_json json;
  json["fits"] = true;
  json["peak_bytes"] = {
      {"device", plan.device_bytes}, {"host", plan.host_bytes}, {"nvme", plan.nvme_bytes}};
  json["pinned_bytes"] = plan.pinned_bytes;
  json["peak_by_class"] = {{"device", plan.programs.at_peak[static_cast<int>(Arena::kDevice)]},
                           {"host", plan.programs.at_peak[static_cast<int>(Arena::kHost)]}};
  json["peak_by_class"]["host"]["runtime base"] = plan.budgets.host_base;
  if (plan.budgets.device_in_host)
    json["peak_by_class"]["host"]["device arena"] = plan.device_bytes;
  json["budget_bytes"] = {
      {"device", plan.budgets.device}, {"host", plan.budgets.host}, {"nvme", plan.budgets.nvme}};
  json["step_seconds"] = plan.forecast.step_seconds;
  json["ideal_seconds"] = plan.forecast.ideal_seconds;
  json["bottleneck"] = lane_name(plan.forecast.bottleneck);
  const double parameters = static_cast<double>(plan.model->parameters());
  for (int lane = 0; lane < kLanes; ++lane) {
    if (static_cast<Lane>(lane) == Lane::kCommit) continue;
    const LaneForecast& forecast = plan.forecast.lanes[lane];
    json["lanes"][lane_name(static_cast<Lane>(lane))] = {
        {"busy_seconds", forecast.busy_seconds},
        {"bytes", forecast.bytes},
        {"bytes_per_parameter_step", static_cast<double>(forecast.bytes) / parameters}};
  }
  json["written_bytes_per_step"] = plan.traffic.nvme_write;
  json["read_bytes_per_step"] = plan.traffic.nvme_read;
  json["exposed_optimizer_seconds"] = plan.forecast.exposed_optimizer_seconds;
  json["exposed_optimizer_seconds_clipping"] = plan.waiting.exposed_optimizer_seconds;
  json["exposed_optimizer_seconds_not_clipping"] =
      plan.early.value_or(plan.waiting).exposed_optimizer_seconds;
  add_textbook(json, parameters, ranks);
  double state_bytes = 0;
  for (const StateLayout& state : plan.input.states) {
    state_bytes += static_cast<double>(state.bytes_per_tile) / static_cast<double>(model::kTile);
  }
  json["state_bytes_per_rank"] = parameters * state_bytes / ranks;
  json["placement"] = describe(plan.input);
  json["checkpoint_slots"] = plan.input.settings.slots;
  if (plan.unpinned_step_seconds) json["step_seconds_placement_auto"] = *plan.unpinned_step_seconds;
  json["notes"] = plan.notes;
  json["rejected"] = nlohmann::json::array();
  for (const Rejected& rejected : plan.rejected)
    json["rejected"].push_back({{"what", rejected.what}, {"why", rejected.why}});
  return json.dump(2) + "\n";
}

}  // namespace zinf::plan
