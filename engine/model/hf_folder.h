// A Hugging Face model folder: config.json and safetensors weights, one file or shards with an
// index. Nothing else is read, and nothing read can run code.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/model/json_config.h"
#include "engine/model/safetensors.h"

namespace zinf::model {

enum class FolderUse {
  kWithWeights,  // weights must be there
  kConfigOnly,   // random init: config.json is enough, weights are not looked at
};

// Movable; reads are thread-safe. Holds one descriptor per shard.
class HfFolder {
 public:
  // A folder, or a Hub id in the local cache (hub_cache.h).
  // Error(kUsage) says what is missing or damaged and where: folder, config.json, weights (pickles
  // are refused with the reason), a shard named by the index, a tensor that two shards hold, a
  // tensor that its shard lacks.
  static HfFolder open(const std::string& path_or_id, FolderUse use = FolderUse::kWithWeights);

  const std::string& path() const { return path_; }
  const JsonConfig& config() const { return config_; }
  const std::string& config_text() const { return config_text_; }

  const std::vector<SafetensorsFile>& files() const { return files_; }
  bool sharded() const { return sharded_; }
  bool has(std::string_view name) const { return find(name) != nullptr; }
  const SafeTensor* find(std::string_view name) const;  // nullptr: no file has it
  std::vector<std::string> names()
      const;  // of all tensors, file by file, in the order of their data

  // Elements [first, first + count) as stored. The tensor must exist.
  void read(std::string_view name, std::int64_t first, std::int64_t count, void* into) const;
  void read_bytes(std::string_view name, Bytes first, Bytes count, void* into) const;
  // The same as fp32; the type must be F16, BF16, F32 or F64. A value that is not finite (or, from
  // F64, too large) is an Error(kUsage) naming tensor and index.
  void read_fp32(std::string_view name, std::int64_t first, std::int64_t count, float* into) const;

 private:
  HfFolder(std::string path, std::string config_text, JsonConfig config)
      : path_(std::move(path)), config_text_(std::move(config_text)), config_(std::move(config)) {}
  void open_weights();
  void open_shards(const std::string& index_path);
  void add_file(SafetensorsFile file);
  const SafetensorsFile& file_of(std::string_view name) const;

  std::string path_;
  std::string config_text_;
  JsonConfig config_;
  bool sharded_ = false;
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string, std::pair<int, const SafeTensor*>>
      tensors_;  // name -> file, tensor
};

}  // namespace zinf::model
