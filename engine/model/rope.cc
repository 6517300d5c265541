#include "engine/model/rope.h"

#include "engine/model/aten.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "engine/base/error.h"
#include "engine/base/str.h"

namespace zinf::model {
namespace {

constexpr const char* kImplemented = "default, linear, dynamic, llama3, yarn";
constexpr double kLargest = 1e12;

double yarn_scale(double factor, double weight) {
  return factor <= 1 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
}

// The factor on cosines and sines: given, or inferred as the YaRN paper suggests.
double read_yarn_attention(const JsonConfig& json, double factor) {
  if (json.has("attention_factor")) return json.number("attention_factor", 1e-3, 1e3);
  const double weight = json.number_or("mscale", 0, 100, 0);
  const double weight_all = json.number_or("mscale_all_dim", 0, 100, 0);
  if (weight > 0 && weight_all > 0)
    return yarn_scale(factor, weight) / yarn_scale(factor, weight_all);
  return yarn_scale(factor, 1);
}

void refuse_partial_rotation(const JsonConfig& json) {
  if (json.number_or("partial_rotary_factor", 0, 1, 1) == 1) return;
  throw Error(ErrorKind::kUsage,
              str(json.where("partial_rotary_factor"), " is ", json.shown("partial_rotary_factor"),
                  "; this family rotates whole heads (1)"));
}

void read_scaling(const JsonConfig& json, std::int64_t max_length, RopeSettings& rope) {
  rope.kind = json.has("rope_type") ? json.text("rope_type") : json.text_or("type", "default");
  refuse_partial_rotation(json);
  if (rope.kind == "default") {
    // What is meant for another kind, or for layers of several, would be left out in silence.
    for (const std::string& key : json.keys()) {
      const bool one = (key == "factor" || key == "attention_factor") &&
                       json.number_or(key, 0, kLargest, 1) == 1;
      if (one || !json.has(key) || key == "rope_type" || key == "type" || key == "rope_theta" ||
          key == "partial_rotary_factor" || key == "original_max_position_embeddings")
        continue;
      throw Error(ErrorKind::kUsage,
                  str(json.where(key), " is ", json.shown(key),
                      ", which the rope type \"default\" does "
                      "not use"),
                  str("name the type (rope_type: ", kImplemented, "), or remove the key"));
    }
    return;
  }
  if (rope.kind != "linear" && rope.kind != "dynamic" && rope.kind != "llama3" &&
      rope.kind != "yarn") {
    throw Error(
        ErrorKind::kUsage,
        str(json.where("rope_type"), ": rope scaling \"", rope.kind, "\" is not implemented"),
        str("implemented: ", kImplemented));
  }
  rope.original_length =
      json.integer_or("original_max_position_embeddings", 1, std::int64_t{1} << 40, max_length);
  if (rope.kind == "yarn" && !json.has("factor")) {
    rope.factor = static_cast<double>(max_length) / static_cast<double>(rope.original_length);
  } else {
    rope.factor = json.number("factor", 1e-3, 1e6);
  }
  if (rope.kind == "llama3") {
    rope.low_frequency_factor = json.number("low_freq_factor", 1e-6, 1e6);
    rope.high_frequency_factor = json.number("high_freq_factor", 1e-6, 1e6);
    if (rope.high_frequency_factor <= rope.low_frequency_factor) {
      throw Error(
          ErrorKind::kUsage,
          str(json.where("high_freq_factor"), " is ", json.shown("high_freq_factor"),
              ", expected more than low_freq_factor (", json.shown("low_freq_factor"), ")"));
    }
  }
  if (rope.kind == "yarn") {
    rope.attention_factor = read_yarn_attention(json, rope.factor);
    rope.beta_fast = json.number_or("beta_fast", 1e-3, 1e6, 32);
    rope.beta_slow = json.number_or("beta_slow", 1e-3, 1e6, 1);
    rope.truncate = json.flag_or("truncate", true);
    if (rope.theta <= 1) {
      throw Error(ErrorKind::kUsage,
                  str(json.where("rope_type"),
                      ": rope scaling \"yarn\" expects rope_theta above 1, found ", rope.theta));
    }
  }
}

// theta ^ (0, 2/width, 4/width, ...), in fp32.
at::Tensor powers(const RopeSettings& rope, std::int64_t width) {
  const at::Tensor exponents = at::arange(0, width, 2, at::kLong).to(at::kFloat).div(width);
  return at::pow(at::Scalar(rope.theta), exponents);
}

at::Tensor llama3_frequencies(const RopeSettings& rope, const at::Tensor& plain) {
  const double length = static_cast<double>(rope.original_length);
  const double low_wave = length / rope.low_frequency_factor,
               high_wave = length / rope.high_frequency_factor;
  const at::Tensor wave = plain.reciprocal().mul(2 * std::numbers::pi);
  const at::Tensor scaled = at::where(wave.gt(low_wave), plain.div(rope.factor), plain);
  const at::Tensor smooth = wave.reciprocal()
                                .mul(length)
                                .sub(rope.low_frequency_factor)
                                .div(rope.high_frequency_factor - rope.low_frequency_factor);
  const at::Tensor between =
      smooth.neg().add(1).mul(scaled).div(rope.factor).add(smooth.mul(scaled));
  const at::Tensor medium =
      wave.lt(high_wave).logical_not().logical_and(wave.gt(low_wave).logical_not());
  return at::where(medium, between, scaled);
}

// The dimension that turns `rotations` times over the original length.
double yarn_dimension(const RopeSettings& rope, double rotations, double width) {
  return width *
         std::log(static_cast<double>(rope.original_length) / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

at::Tensor yarn_frequencies(const RopeSettings& rope, std::int64_t width) {
  const at::Tensor period = powers(rope, width);
  double low = yarn_dimension(rope, rope.beta_fast, static_cast<double>(width));
  double high = yarn_dimension(rope, rope.beta_slow, static_cast<double>(width));
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(width - 1));
  if (low == high) high += 0.001;
  const at::Tensor ramp = at::arange(width / 2, at::kFloat).sub(low).div(high - low).clamp(0, 1);
  const at::Tensor keep = ramp.neg().add(1);  // the share that stays as it was
  return period.mul(rope.factor)
      .reciprocal()
      .mul(keep.neg().add(1))
      .add(period.reciprocal().mul(keep));
}

}  // namespace

RopeSettings read_rope(const JsonConfig& config, std::int64_t max_length, double default_theta) {
  RopeSettings rope;
  rope.theta = config.number_or("rope_theta", 1, kLargest, default_theta);
  refuse_partial_rotation(config);
  const auto read = [&](const char* key) {
    const JsonConfig json = config.object(key);
    RopeSettings settings = rope;
    settings.theta = json.number_or("rope_theta", 1, kLargest, rope.theta);
    read_scaling(json, max_length, settings);
    return settings;
  };
  const bool parameters = config.has("rope_parameters"), scaling = config.has("rope_scaling");
  if (parameters) rope = read("rope_parameters");
  // Where the second names no theta, that of the first counts.
  if (scaling) {
    const RopeSettings other = read("rope_scaling");
    if (parameters && !(other == rope)) {
      throw Error(ErrorKind::kUsage,
                  str(config.where("rope_scaling"), " is ", config.shown("rope_scaling"),
                      " and rope_parameters is ", config.shown("rope_parameters"),
                      ": expected one of them, or both alike"),
                  "versions of transformers differ in which they take; remove the one that is not "
                  "meant");
    }
    rope = other;
  }
  // Within max_length the dynamic kind is the plain one, and longer sequences are refused.
  return rope;
}

at::Tensor rope_frequencies(const RopeSettings& rope, std::int64_t width) {
  if (rope.kind == "yarn") return yarn_frequencies(rope, width);
  const at::Tensor plain = powers(rope, width).reciprocal();
  if (rope.kind == "linear") return plain.div(rope.factor);
  if (rope.kind == "llama3") return llama3_frequencies(rope, plain);
  return plain;
}

std::pair<at::Tensor, at::Tensor> rope_table(const at::Tensor& frequencies,
                                             const RopeSettings& rope, const BatchView& batch) {
  const at::Tensor positions = at::from_blob(
      const_cast<std::int32_t*>(batch.batch->positions.data()), {batch.positions(), 1}, at::kInt);
  const at::Tensor angles = positions.to(at::kFloat).mul(frequencies.unsqueeze(0));
  at::Tensor cosines = angles.cos(), sines = angles.sin();
  if (rope.attention_factor != 1) {
    cosines.mul_(rope.attention_factor);
    sines.mul_(rope.attention_factor);
  }
  return {cosines, sines};
}

}  // namespace zinf::model
