#include "engine/observe/summary.h"

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/observe/atomic_file.h"
#include "engine/observe/json_fields.h"

namespace zinf::observe {

namespace {

Json byte_map(const std::map<std::string, Bytes>& values) {
  Json json = Json::object();
  for (const auto& [name, bytes] : values) json[name] = bytes;
  return json;
}

Json tier_json(const TierPeak& tier) {
  Json json;
  json["predicted"] = tier.predicted;
  json["measured"] = tier.measured;
  json["budget"] = tier.budget;
  json["by_class"] = byte_map(tier.by_class);
  return json;
}

TierPeak parse_tier(const Json& json) {
  TierPeak tier;
  get_count(json, "predicted", tier.predicted);
  get_count(json, "measured", tier.measured);
  get_count(json, "budget", tier.budget);
  get_byte_map(json, "by_class", tier.by_class);
  return tier;
}

Json lane_json(const LaneSummary& lane) {
  Json json;
  json["busy_share"] = json_number(lane.busy_share);
  json["predicted_busy_share"] = json_number(lane.predicted_busy_share);
  json["bytes_per_parameter_step"] = json_number(lane.bytes_per_parameter_step);
  json["least_bytes_per_parameter_step"] = json_number(lane.least_bytes_per_parameter_step);
  json["profile_ratio"] = json_number(lane.profile_ratio);
  return json;
}

LaneSummary parse_lane(const Json& json) {
  LaneSummary lane;
  get_number(json, "busy_share", lane.busy_share);
  get_number(json, "predicted_busy_share", lane.predicted_busy_share);
  get_number(json, "bytes_per_parameter_step", lane.bytes_per_parameter_step);
  get_number(json, "least_bytes_per_parameter_step", lane.least_bytes_per_parameter_step);
  get_number(json, "profile_ratio", lane.profile_ratio);
  return lane;
}

Summary from_json(const Json& json) {
  Summary summary;
  get_count(json, "steps", summary.steps);
  get_number(json, "final_loss", summary.final_loss);
  get_count(json, "parameters", summary.parameters);
  get_text(json, "weights_hash", summary.weights_hash);
  get_text(json, "state_hash", summary.state_hash);
  get_number(json, "tokens_per_second", summary.tokens_per_second);
  const Json& times = member(json, "step_seconds");
  get_number(times, "measured", summary.step_seconds_measured);
  get_number(times, "predicted", summary.step_seconds_predicted);
  get_number(times, "ideal", summary.step_seconds_ideal);
  get_number(json, "efficiency", summary.efficiency);
  const Json& bottleneck = member(json, "bottleneck");
  get_text(bottleneck, "measured", summary.bottleneck);
  get_text(bottleneck, "predicted", summary.predicted_bottleneck);
  get_number(json, "exposed_optimizer_seconds", summary.exposed_optimizer_seconds);
  get_number(json, "predicted_exposed_optimizer_seconds",
             summary.predicted_exposed_optimizer_seconds);
  const Json& peaks = member(json, "peak_bytes");
  summary.device = parse_tier(member(peaks, "device"));
  summary.host = parse_tier(member(peaks, "host"));
  summary.nvme = parse_tier(member(peaks, "nvme"));
  summary.pinned = parse_tier(member(peaks, "pinned"));
  summary.process = parse_tier(member(peaks, "process"));
  const Json& lanes = member(json, "lanes");
  for (std::size_t i = 0; i < kLanes; ++i) {
    summary.lanes.values[i] = parse_lane(member(lanes, std::string(kLaneNames[i]).c_str()));
  }
  get_byte_map(json, "written_bytes", summary.written_bytes);
  get_byte_map(json, "endurance_bytes", summary.endurance);
  get_number(json, "total_seconds", summary.total_seconds);
  get_count(json, "tokens", summary.tokens);
  get_count(json, "speculated_steps", summary.speculated_steps);
  get_count(json, "redo_steps", summary.redo_steps);
  get_text(json, "stopped_by", summary.stopped_by);
  get_optional(json, "eval_loss", summary.eval_loss);
  return summary;
}

}  // namespace

std::string summary_json(const Summary& summary) {
  Json json;
  json["steps"] = summary.steps;
  json["final_loss"] = json_number(summary.final_loss);
  json["parameters"] = summary.parameters;
  json["weights_hash"] = summary.weights_hash;
  json["state_hash"] = summary.state_hash;
  json["tokens_per_second"] = json_number(summary.tokens_per_second);
  json["step_seconds"]["measured"] = json_number(summary.step_seconds_measured);
  json["step_seconds"]["predicted"] = json_number(summary.step_seconds_predicted);
  json["step_seconds"]["ideal"] = json_number(summary.step_seconds_ideal);
  json["efficiency"] = json_number(summary.efficiency);
  json["bottleneck"]["measured"] = summary.bottleneck;
  json["bottleneck"]["predicted"] = summary.predicted_bottleneck;
  json["exposed_optimizer_seconds"] = json_number(summary.exposed_optimizer_seconds);
  json["predicted_exposed_optimizer_seconds"] =
      json_number(summary.predicted_exposed_optimizer_seconds);
  json["peak_bytes"]["device"] = tier_json(summary.device);
  json["peak_bytes"]["host"] = tier_json(summary.host);
  json["peak_bytes"]["nvme"] = tier_json(summary.nvme);
  json["peak_bytes"]["pinned"] = tier_json(summary.pinned);
  json["peak_bytes"]["process"] = tier_json(summary.process);
  for (std::size_t i = 0; i < kLanes; ++i) {
    json["lanes"][std::string(kLaneNames[i])] = lane_json(summary.lanes.values[i]);
  }
  json["written_bytes"] = byte_map(summary.written_bytes);
  json["endurance_bytes"] = byte_map(summary.endurance);
  json["total_seconds"] = json_number(summary.total_seconds);
  json["tokens"] = summary.tokens;
  json["speculated_steps"] = summary.speculated_steps;
  json["redo_steps"] = summary.redo_steps;
  json["stopped_by"] = summary.stopped_by.empty() ? Json(nullptr) : Json(summary.stopped_by);
  if (summary.eval_loss) json["eval_loss"] = json_number(*summary.eval_loss);
  return dump(json, 1) + "\n";
}

Summary parse_summary(std::string_view json) {
  try {
    return from_json(Json::parse(json));
  } catch (const Json::exception& error) {
    throw Error(ErrorKind::kUsage, str("not a summary.json: ", error.what()));
  }
}

void write_summary(const Summary& summary, const std::string& path) {
  write_file_atomically(path, summary_json(summary), Durability::kSynced);
}

}  // namespace zinf::observe
