// Reader of safetensors files: u64 header length (little-endian), JSON header, data. Every number
// in a file is hostile: all is checked at open(), before anything of its size is allocated; errors
// name file and tensor.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/model/posix_file.h"

namespace zinf::model {

// Every element type that the format knows, by its name in the file.
enum class SafeType {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};
std::string_view name_of(SafeType type);
std::optional<SafeType> safe_type(std::string_view name);
int bits_of(SafeType type);
// F16, BF16, F32, F64: what can become an fp32 master.
bool is_weight_type(SafeType type);

struct SafeTensor {
  std::string name;
  SafeType type = SafeType::kF32;
  std::vector<std::int64_t> shape;  // empty: a scalar
  std::int64_t elements = 0;
  Bytes begin = 0;  // bytes from the start of the file's data
  Bytes end = 0;
};
// "[64, 16]"
std::string shape_text(const std::vector<std::int64_t>& shape);

// An open file; memory is that of its tensor list. Movable. Reads are positioned: thread-safe.
class SafetensorsFile {
 public:
  // The reference reader's limit on the header.
  static constexpr Bytes kMostHeaderBytes = 100'000'000;

  // Throws Error(kUsage) for what the format forbids and Error(kFailed) for I/O errors.
  static SafetensorsFile open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<SafeTensor>& tensors() const { return tensors_; }  // in the order of their data
  const SafeTensor* find(std::string_view name) const;                 // nullptr: not in this file
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Elements [first, first + count) of a tensor of this file, as stored. The type must have whole
  // bytes.
  void read(const SafeTensor& tensor, std::int64_t first, std::int64_t count, void* into) const;
  // The same in bytes, for any type.
  void read_bytes(const SafeTensor& tensor, Bytes first, Bytes count, void* into) const;

 private:
  explicit SafetensorsFile(PosixFile file) : file_(std::move(file)) {}

  PosixFile file_;
  Bytes data_start_ = 0;
  std::vector<SafeTensor> tensors_;
  std::unordered_map<std::string, std::size_t> index_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace zinf::model
