// Small edits of config.json that leave everything else, and the order of keys, as they were.
#pragma once

#include <string>

#include "engine/model/model_spec.h"

namespace zinf::model {

// Sets "dtype" (transformers 5) and "torch_dtype" (older), whichever are there; adds torch_dtype,
// which both read, when neither is. The text must be a JSON object (JsonConfig::parse has seen it).
std::string config_with_dtype(const std::string& config_text, DType type);

}  // namespace zinf::model
