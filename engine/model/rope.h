// Rotary position embeddings: the frequencies of every scaling kind that is implemented, computed
// in fp32 by the same operations as transformers, whose frequencies they match bit for bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/model/batch_view.h"
#include "engine/model/json_config.h"

namespace zinf::model {

struct RopeSettings {
  std::string kind = "default";  // default, linear, dynamic, llama3, yarn
  double theta = 10000;
  double factor = 1;
  std::int64_t original_length =
      0;  // llama3, yarn: the length that the model was first trained for
  double low_frequency_factor = 1, high_frequency_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1, attention_factor = 1;  // yarn
  bool truncate = true;                                        // yarn
  bool operator==(const RopeSettings&) const = default;
};

// Reads rope_parameters (transformers 5) or rope_theta and rope_scaling, with `rope_type` or
// `type`; null and absent mean default. Error(kUsage) names a kind that is not implemented.
RopeSettings read_rope(const JsonConfig& config, std::int64_t max_length, double default_theta);

// width / 2 inverse frequencies.
at::Tensor rope_frequencies(const RopeSettings& rope, std::int64_t width);

// Cosines and sines for every position of the batch: each [positions, width / 2], fp32.
std::pair<at::Tensor, at::Tensor> rope_table(const at::Tensor& frequencies,
                                             const RopeSettings& rope, const BatchView& batch);

}  // namespace zinf::model
