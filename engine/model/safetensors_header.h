// The JSON header of a safetensors file, checked. Private to the reader.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/model/safetensors.h"

namespace zinf::model {

struct SafetensorsHeader {
  std::vector<SafeTensor> tensors;  // in the order of their data
  std::map<std::string, std::string> metadata;
};

// `data_bytes` is what follows the header in the file: tensors must cover it exactly, without hole
// or overlap. Throws Error(kUsage) naming `path` and the tensor.
SafetensorsHeader parse_safetensors_header(const std::string& text, Bytes data_bytes,
                                           const std::string& path);

// shape times type in bytes, with overflow checks; false: too large for 63 bits, or no whole number
// of bytes.
bool tensor_bytes(const std::vector<std::int64_t>& shape, SafeType type, std::int64_t* elements,
                  Bytes* bytes);

}  // namespace zinf::model
