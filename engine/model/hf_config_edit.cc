#include "engine/model/hf_config_edit.h"

#include <nlohmann/json.hpp>

namespace zinf::model {

std::string config_with_dtype(const std::string& config_text, DType type) {
  using Json = nlohmann::ordered_json;
  Json config = Json::parse(config_text);
  const char* name = type == DType::kFloat32 ? "float32" : "bfloat16";
  const bool modern = config.contains("dtype");
  if (modern) config["dtype"] = name;
  if (config.contains("torch_dtype") || !modern) config["torch_dtype"] = name;
  return config.dump(2) + "\n";
}

}  // namespace zinf::model
