// Streaming writer of safetensors files: tensors are declared first, then their bytes are appended
// in order. Nothing appears under the final name before finish().
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/model/posix_file.h"
#include "engine/model/safetensors.h"

namespace zinf::model {

struct TensorDeclaration {
  std::string name;
  SafeType type = SafeType::kF32;
  std::vector<std::int64_t> shape;
  Bytes bytes() const;  // shape times type
};

// One file, written to "<path>.partial" and renamed. Not thread-safe. Throws Error(kFailed) when
// the disk fails.
class SafetensorsWriter {
 public:
  // Declares all tensors; their data follow in this order. Writes the header, padded to a multiple
  // of 8 bytes. Put wide types first: readers then find every tensor aligned to its element size.
  SafetensorsWriter(const std::string& path, std::vector<TensorDeclaration> tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  ~SafetensorsWriter();  // removes the partial file unless finished
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // The next bytes of the data, of any length; may cross from one tensor into the next.
  void append(const void* bytes, Bytes count);
  // All declared bytes must be there: fsync, rename, fsync of the folder.
  void finish();

 private:
  std::string path_;
  PosixFile file_;
  Bytes expected_ = 0;
  Bytes written_ = 0;
  bool finished_ = false;
};

// How tensors are spread over files: in the given order, a new file where the next tensor would
// pass shard_bytes (0: one file). One file is "model.safetensors", several are
// "model-00001-of-0000n.safetensors".
struct Shard {
  std::string file_name;
  std::vector<TensorDeclaration> tensors;  // wide types first, else in the given order
};
constexpr Bytes kDefaultShardBytes = 5'000'000'000;
std::vector<Shard> plan_shards(const std::vector<TensorDeclaration>& tensors, Bytes shard_bytes);
// The text of model.safetensors.index.json: metadata.total_size and weight_map.
std::string shard_index_json(const std::vector<Shard>& shards);

}  // namespace zinf::model
