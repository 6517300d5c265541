#include "engine/model/hf_export.h"

#include <algorithm>
#include <filesystem>
#include <unordered_map>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/model/export_folder.h"
#include "engine/model/float_convert.h"
#include "engine/model/hf_config_edit.h"
#include "engine/model/posix_file.h"

namespace zinf::model {
namespace {

namespace fs = std::filesystem;

// One tensor of the output and where its values come from.
struct Item {
  TensorDeclaration declaration;
  int piece = -1;                      // -1: from the folder
  const TensorSpec* tensor = nullptr;  // of the piece
  std::string folder_name;             // when from the folder
};

using Items = std::vector<Item>;

// As the source folder names it, if there is one. A tied tensor keeps the spec's name whatever the
// source called it: it is the one that HF writes.
std::string export_name(const TensorSpec& tensor, const ExportSource& source) {
  const std::string prefix = source.folder != nullptr ? source.map->dropped_prefix : "";
  return tensor.name.compare(0, prefix.size(), prefix) == 0 ? tensor.name.substr(prefix.size())
                                                            : tensor.name;
}

// Every tensor of the spec in its order, then what the source carries besides.
Items list_items(const ModelSpec& spec, const ExportSource& source, SafeType type) {
  Items items;
  for (std::size_t p = 0; p < spec.pieces.size(); ++p) {
    for (const TensorSpec& tensor : spec.pieces[p].tensors) {
      Item item = {
          {export_name(tensor, source), type, tensor.shape}, static_cast<int>(p), &tensor, {}};
      if (source.folder != nullptr && !spec.pieces[p].trainable) {
        item.piece = -1;
        item.folder_name = source.map->folder_name.at(tensor.name);
      }
      items.push_back(std::move(item));
    }
  }
  if (source.folder == nullptr) return items;
  for (const std::string& name : source.map->carried) {
    const SafeTensor& tensor = *source.folder->find(name);
    items.push_back({{name, tensor.type, tensor.shape}, -1, nullptr, name});
  }
  return items;
}

// Writes one tensor through a buffer of kExportChunk fp32 elements.
class TensorStream {
 public:
  TensorStream(const HfFolder* folder, const ExportValues& values)
      : folder_(folder), values_(values), buffer_(kExportChunk) {}

  void write(const Item& item, SafetensorsWriter& writer) {
    if (item.piece >= 0) {
      write_trained(item, writer);
    } else if (folder_->find(item.folder_name)->type == item.declaration.type) {
      copy(item, writer);
    } else {
      convert(item, writer);
    }
  }

 private:
  void write_trained(const Item& item, SafetensorsWriter& writer) {
    for (std::int64_t done = 0; done < item.tensor->elements;) {
      const std::int64_t count = std::min(kExportChunk, item.tensor->elements - done);
      values_(item.piece, item.tensor->offset + done, count, buffer_.data());
      writer.append(buffer_.data(),
                    static_cast<Bytes>(count) * (bits_of(item.declaration.type) / 8));
      done += count;
    }
  }

  void copy(const Item& item, SafetensorsWriter& writer) {
    const Bytes total = item.declaration.bytes();
    for (Bytes done = 0; done < total;) {
      const Bytes count = std::min<Bytes>(buffer_.size() * sizeof(float), total - done);
      folder_->read_bytes(item.folder_name, done, count, buffer_.data());
      writer.append(buffer_.data(), count);
      done += count;
    }
  }

  // A frozen weight in another type than the export's.
  void convert(const Item& item, SafetensorsWriter& writer) {
    const std::int64_t elements = folder_->find(item.folder_name)->elements;
    std::vector<std::uint16_t> halves(item.declaration.type == SafeType::kBF16 ? kExportChunk : 0);
    for (std::int64_t done = 0; done < elements;) {
      const std::int64_t count = std::min(kExportChunk, elements - done);
      folder_->read_fp32(item.folder_name, done, count, buffer_.data());
      if (halves.empty()) {
        writer.append(buffer_.data(), static_cast<Bytes>(count) * sizeof(float));
      } else {
        for (std::int64_t i = 0; i < count; ++i) halves[i] = to_bf16_even(buffer_[i]);
        writer.append(halves.data(), static_cast<Bytes>(count) * sizeof(std::uint16_t));
      }
      done += count;
    }
  }

  const HfFolder* folder_;
  const ExportValues& values_;
  std::vector<float> buffer_;
};

}  // namespace

ExportResult export_hf(const ModelSpec& spec, const ExportSource& source,
                       const ExportValues& values, const std::string& path,
                       const ExportOptions& options) {
  ZINF_CHECK(source.folder == nullptr || source.map != nullptr,
             "a source folder needs its tensor map");
  const SafeType type = options.type == DType::kFloat32 ? SafeType::kF32 : SafeType::kBF16;
  const Items items = list_items(spec, source, type);
  std::vector<TensorDeclaration> declarations;
  std::unordered_map<std::string, const Item*> item_of;
  ExportResult result;
  for (const Item& item : items) {
    declarations.push_back(item.declaration);
    result.weight_bytes += item.declaration.bytes();
    item_of[item.declaration.name] = &item;
  }
  result.tensors = static_cast<std::int64_t>(items.size());
  const std::string root = source.folder != nullptr ? source.folder->path() : "";
  const std::vector<SideFile> side_files =
      root.empty() ? std::vector<SideFile>() : list_side_files(root);
  Bytes needed = result.weight_bytes + kMiB;  // and the headers
  for (const SideFile& file : side_files) needed += file.bytes;
  ExportFolder aside(path);
  aside.check_space(needed);

  const fs::path folder = aside.create();
  const std::vector<Shard> shards = plan_shards(declarations, options.shard_bytes);
  TensorStream stream(source.folder, values);
  for (const Shard& shard : shards) {
    SafetensorsWriter writer((folder / shard.file_name).string(), shard.tensors);
    for (const TensorDeclaration& tensor : shard.tensors)
      stream.write(*item_of.at(tensor.name), writer);
    writer.finish();
  }
  if (shards.size() > 1) {
    write_text_file((folder / "model.safetensors.index.json").string(), shard_index_json(shards));
  }
  result.files = static_cast<int>(shards.size());
  for (const SideFile& file : side_files) copy_side_file(root, folder.string(), file);
  const std::string& config =
      source.folder != nullptr ? source.folder->config_text() : source.config_text;
  write_text_file((folder / "config.json").string(), config_with_dtype(config, options.type));
  result.path = aside.publish();
  return result;
}

}  // namespace zinf::model
