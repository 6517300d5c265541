#include "engine/model/safetensors_writer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/model/safetensors_header.h"

namespace zinf::model {
namespace {

using Json = nlohmann::ordered_json;

std::string partial(const std::string& path) { return path + ".partial"; }

std::string header_text(const std::vector<TensorDeclaration>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  // Text by hand for the entries: ordered_json looks a key up among all before it, which is
  // quadratic.
  std::string text = header.dump();
  text.pop_back();
  Bytes offset = 0;
  std::unordered_set<std::string> names;
  for (const TensorDeclaration& tensor : tensors) {
    ZINF_CHECK(names.insert(tensor.name).second, str("tensor ", tensor.name, " is declared twice"));
    const Json entry = {{"dtype", name_of(tensor.type)},
                        {"shape", tensor.shape},
                        {"data_offsets", {offset, offset + tensor.bytes()}}};
    if (text.size() > 1) text += ',';
    text += str(Json(tensor.name).dump(), ":", entry.dump());
    offset += tensor.bytes();
  }
  text += '}';
  // The data then start at a multiple of 8 in the file.
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace

Bytes TensorDeclaration::bytes() const {
  std::int64_t elements = 0;
  Bytes bytes = 0;
  ZINF_CHECK(tensor_bytes(shape, type, &elements, &bytes),
             str("tensor ", name, " of shape ", shape_text(shape)));
  return bytes;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path,
                                     std::vector<TensorDeclaration> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(path), file_(PosixFile::create(partial(path))) {
  for (const TensorDeclaration& tensor : tensors) expected_ += tensor.bytes();
  const std::string text = header_text(tensors, metadata);
  if (text.size() > SafetensorsFile::kMostHeaderBytes) {
    throw Error(ErrorKind::kUsage,
                str(path, ": a header of ", text.size(), " bytes; readers take at most ",
                    SafetensorsFile::kMostHeaderBytes),
                "write several smaller files");
  }
  unsigned char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<unsigned char>(text.size() >> (8 * i));
  file_.append(length, 8);
  file_.append(text.data(), text.size());
}

SafetensorsWriter::~SafetensorsWriter() {
  if (!finished_) ::unlink(partial(path_).c_str());
}

void SafetensorsWriter::append(const void* bytes, Bytes count) {
  ZINF_CHECK(count <= expected_ - written_, str(path_, ": more bytes than were declared"));
  file_.append(bytes, count);
  written_ += count;
}

void SafetensorsWriter::finish() {
  ZINF_CHECK(written_ == expected_,
             str(path_, ": ", written_, " of ", expected_, " declared bytes written"));
  file_.sync();
  if (std::rename(partial(path_).c_str(), path_.c_str()) != 0) {
    throw Error(ErrorKind::kFailed,
                str("renaming ", partial(path_), " to ", path_, ": ", std::strerror(errno)));
  }
  finished_ = true;
  const std::string folder = std::filesystem::path(path_).parent_path();
  sync_folder(folder.empty() ? "." : folder);
}

std::vector<Shard> plan_shards(const std::vector<TensorDeclaration>& tensors, Bytes shard_bytes) {
  std::vector<Shard> shards(1);
  Bytes used = 0;
  for (const TensorDeclaration& tensor : tensors) {
    const Bytes bytes = tensor.bytes();
    if (shard_bytes != 0 && !shards.back().tensors.empty() && used + bytes > shard_bytes) {
      shards.emplace_back();
      used = 0;
    }
    shards.back().tensors.push_back(tensor);
    used += bytes;
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    std::stable_sort(shards[i].tensors.begin(), shards[i].tensors.end(),
                     [](const TensorDeclaration& a, const TensorDeclaration& b) {
                       return bits_of(a.type) > bits_of(b.type);
                     });
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    shards[i].file_name = shards.size() == 1 ? "model.safetensors" : name;
  }
  return shards;
}

std::string shard_index_json(const std::vector<Shard>& shards) {
  Bytes total = 0;
  std::map<std::string, std::string> weight_map;
  for (const Shard& shard : shards) {
    for (const TensorDeclaration& tensor : shard.tensors) {
      total += tensor.bytes();
      weight_map[tensor.name] = shard.file_name;
    }
  }
  const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
  return index.dump(2) + "\n";
}

}  // namespace zinf::model
