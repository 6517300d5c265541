#include "engine/model/hf_folder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/model/deepspeed_folder.h"
#include "engine/model/float_convert.h"
#include "engine/model/hub_cache.h"

namespace zinf::model {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kMostConfigBytes = 16 * kMiB;
constexpr Bytes kMostIndexBytes = 256 * kMiB;
// Small enough to stay in cache between the read and its conversion.
constexpr std::int64_t kConvertChunk = 1 << 16;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::vector<std::string> file_names(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error)
    throw Error(ErrorKind::kFailed, str("cannot list folder ", folder, ": ", error.message()));
  std::sort(names.begin(), names.end());
  return names;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

bool is_deepspeed(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (name == "zero_to_fp32.py" || ends_with(name, "_optim_states.pt") ||
        ends_with(name, "_model_states.pt") || name.rfind("global_step", 0) == 0) {
      return true;
    }
  }
  return false;
}

[[noreturn]] void refuse_other_formats(const std::string& path, const std::string& missing) {
  refuse_deepspeed(path, "model folder");
  const std::vector<std::string> names = file_names(path);
  for (const std::string& name : names) {
    const bool pickle = ends_with(name, ".bin") || ends_with(name, ".pt") ||
                        ends_with(name, ".pth") || ends_with(name, ".ckpt") ||
                        ends_with(name, ".pkl");
    if (pickle) {
      throw Error(
          ErrorKind::kUsage,
          str("model folder ", path, " has ", name, " but ", missing,
              "; zinf reads safetensors only, because a pickle can run code when it is loaded"),
          "in an environment that you trust, load it with transformers and save_pretrained() it "
          "again");
    }
    if (ends_with(name, ".gguf")) {
      throw Error(ErrorKind::kUsage,
                  str("model folder ", path, " has ", name, " but ", missing,
                      "; zinf reads safetensors only"),
                  "transformers can load a GGUF file (gguf_file=...) and save_pretrained() it");
    }
  }
  throw Error(ErrorKind::kUsage, str("model folder ", path, " has ", missing));
}

}  // namespace

void refuse_deepspeed(const std::string& folder, const std::string& what) {
  if (!is_deepspeed(file_names(folder))) return;
  throw Error(ErrorKind::kUsage,
              str(what, " ", folder,
                  " is a DeepSpeed ZeRO checkpoint; zinf reads safetensors only, because a "
                  "pickle can run code when it is loaded"),
              "convert it with DeepSpeed's own tool first: python zero_to_fp32.py CHECKPOINT "
              "OUTPUT --safe_serialization");
}

HfFolder HfFolder::open(const std::string& path_or_id, FolderUse use) {
  const std::string path = resolve_model_path(path_or_id);
  const std::string config_path = (fs::path(path) / "config.json").string();
  if (!is_there(config_path)) refuse_other_formats(path, "no config.json");
  std::string text = read_text_file(config_path, kMostConfigBytes);
  JsonConfig config = JsonConfig::parse(text, config_path);
  HfFolder folder(path, std::move(text), std::move(config));
  if (use == FolderUse::kWithWeights) folder.open_weights();
  return folder;
}

void HfFolder::open_weights() {
  // The order in which transformers looks, too.
  const std::string single = (fs::path(path_) / "model.safetensors").string();
  const std::string index = single + ".index.json";
  if (is_there(single)) {
    add_file(SafetensorsFile::open(single));
  } else if (is_there(index)) {
    sharded_ = true;
    open_shards(index);
  } else {
    refuse_other_formats(path_, "no model.safetensors and no model.safetensors.index.json");
  }
}

void HfFolder::open_shards(const std::string& index_path) {
  const JsonConfig index =
      JsonConfig::parse(read_text_file(index_path, kMostIndexBytes), index_path);
  const JsonConfig map = index.object("weight_map");
  std::set<std::string> shards;
  std::vector<std::pair<std::string, std::string>> expected;  // tensor, shard
  for (const std::string& tensor : map.keys()) {
    const std::string shard = map.text(tensor);
    if (shard.empty() || shard.front() == '.' || shard.find('/') != shard.npos ||
        shard.find('\0') != shard.npos) {
      throw Error(ErrorKind::kUsage, str(map.where(tensor), " names the file ", map.shown(tensor),
                                         "; expected a file in the same folder"));
    }
    shards.insert(shard);
    expected.emplace_back(tensor, shard);
  }
  for (const std::string& shard : shards) {
    const std::string path = (fs::path(path_) / shard).string();
    if (!is_there(path)) {
      throw Error(ErrorKind::kUsage,
                  str(index_path, " names ", shard, ", which is not in the folder"),
                  "the download is incomplete; fetch the missing file");
    }
    add_file(SafetensorsFile::open(path));
  }
  for (const auto& [tensor, shard] : expected) {
    const auto found = tensors_.find(tensor);
    const std::string path = (fs::path(path_) / shard).string();
    if (found == tensors_.end() || files_[found->second.first].path() != path) {
      throw Error(ErrorKind::kUsage,
                  str(index_path, " says that ", shard, " holds tensor \"", tensor,
                      "\", which it does not"),
                  "index and shards are not of one model; fetch them again");
    }
  }
}

void HfFolder::add_file(SafetensorsFile file) {
  const int number = static_cast<int>(files_.size());
  files_.push_back(std::move(file));
  for (const SafeTensor& tensor : files_.back().tensors()) {
    const auto [other, added] = tensors_.emplace(tensor.name, std::make_pair(number, &tensor));
    if (!added) {
      throw Error(ErrorKind::kUsage,
                  str("tensor \"", tensor.name, "\" is in two files: ",
                      files_[other->second.first].path(), " and ", files_.back().path()),
                  "the shards are not of one model; fetch them again");
    }
  }
}

const SafeTensor* HfFolder::find(std::string_view name) const {
  const auto found = tensors_.find(std::string(name));
  return found == tensors_.end() ? nullptr : found->second.second;
}

std::vector<std::string> HfFolder::names() const {
  std::vector<std::string> names;
  for (const SafetensorsFile& file : files_) {
    for (const SafeTensor& tensor : file.tensors()) names.push_back(tensor.name);
  }
  return names;
}

const SafetensorsFile& HfFolder::file_of(std::string_view name) const {
  const auto found = tensors_.find(std::string(name));
  ZINF_CHECK(found != tensors_.end(), str("no tensor ", name, " in ", path_));
  return files_[found->second.first];
}

void HfFolder::read(std::string_view name, std::int64_t first, std::int64_t count,
                    void* into) const {
  file_of(name).read(*find(name), first, count, into);
}

void HfFolder::read_bytes(std::string_view name, Bytes first, Bytes count, void* into) const {
  file_of(name).read_bytes(*find(name), first, count, into);
}

void HfFolder::read_fp32(std::string_view name, std::int64_t first, std::int64_t count,
                         float* into) const {
  const SafetensorsFile& file = file_of(name);
  const SafeTensor& tensor = *find(name);
  ZINF_CHECK(is_weight_type(tensor.type), str(name, " is ", name_of(tensor.type)));
  std::vector<std::byte> stored;
  if (tensor.type != SafeType::kF32) {
    stored.resize(static_cast<std::size_t>(std::min(count, kConvertChunk)) *
                  (bits_of(tensor.type) / 8));
  }
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t n = std::min(count - done, kConvertChunk);
    float* out = into + done;
    void* raw = tensor.type == SafeType::kF32 ? static_cast<void*>(out) : stored.data();
    file.read(tensor, first + done, n, raw);
    const auto* halves = static_cast<const std::uint16_t*>(raw);
    if (tensor.type == SafeType::kBF16) {
      for (std::int64_t i = 0; i < n; ++i) out[i] = from_bf16(halves[i]);
    } else if (tensor.type == SafeType::kF16) {
      for (std::int64_t i = 0; i < n; ++i) out[i] = from_fp16(halves[i]);
    } else if (tensor.type == SafeType::kF64) {
      const auto* doubles = static_cast<const double*>(raw);
      for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(doubles[i]);
    }
    bool finite = true;
    for (std::int64_t i = 0; i < n; ++i) finite &= std::isfinite(out[i]);
    for (std::int64_t i = 0; !finite && i < n; ++i) {
      if (std::isfinite(out[i])) continue;
      throw Error(ErrorKind::kUsage, str(file.path(), ": tensor \"", name, "\" (",
                                         name_of(tensor.type), ") holds ", out[i], " at element ",
                                         first + done + i, " as fp32; weights must be finite"));
    }
    done += n;
  }
}

}  // namespace zinf::model
