#include "engine/model/safetensors.h"

#include <array>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/model/safetensors_header.h"

namespace zinf::model {
namespace {

struct TypeRow {
  SafeType type;
  const char* name;
  int bits;
};

constexpr std::array<TypeRow, 22> kTypes{{
    {SafeType::kBool, "BOOL", 8},
    {SafeType::kF4, "F4", 4},
    {SafeType::kF6E2M3, "F6_E2M3", 6},
    {SafeType::kF6E3M2, "F6_E3M2", 6},
    {SafeType::kU8, "U8", 8},
    {SafeType::kI8, "I8", 8},
    {SafeType::kF8E5M2, "F8_E5M2", 8},
    {SafeType::kF8E4M3, "F8_E4M3", 8},
    {SafeType::kF8E8M0, "F8_E8M0", 8},
    {SafeType::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
    {SafeType::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
    {SafeType::kI16, "I16", 16},
    {SafeType::kU16, "U16", 16},
    {SafeType::kF16, "F16", 16},
    {SafeType::kBF16, "BF16", 16},
    {SafeType::kI32, "I32", 32},
    {SafeType::kU32, "U32", 32},
    {SafeType::kF32, "F32", 32},
    {SafeType::kC64, "C64", 64},
    {SafeType::kF64, "F64", 64},
    {SafeType::kI64, "I64", 64},
    {SafeType::kU64, "U64", 64},
}};

const TypeRow& row_of(SafeType type) {
  const TypeRow& row = kTypes[static_cast<std::size_t>(type)];
  ZINF_CHECK(row.type == type, "the table follows the enum");
  return row;
}

[[noreturn]] void refuse(const std::string& path, const std::string& problem) {
  throw Error(ErrorKind::kUsage, str(path, " is no valid safetensors file: ", problem),
              "download or write the file again");
}

}  // namespace

std::string_view name_of(SafeType type) { return row_of(type).name; }

int bits_of(SafeType type) { return row_of(type).bits; }

std::optional<SafeType> safe_type(std::string_view name) {
  for (const TypeRow& row : kTypes) {
    if (row.name == name) return row.type;
  }
  return std::nullopt;
}

bool is_weight_type(SafeType type) {
  return type == SafeType::kF16 || type == SafeType::kBF16 || type == SafeType::kF32 ||
         type == SafeType::kF64;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i == 16) return text + ", ...]";
    text += str(i == 0 ? "" : ", ", shape[i]);
  }
  return text + "]";
}

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  SafetensorsFile opened(PosixFile::open_read(path));
  const Bytes size = opened.file_.size();
  if (size < 8) refuse(path, str("it has ", size, " bytes; the header's length alone takes 8"));
  unsigned char length_bytes[8];
  opened.file_.read(0, 8, length_bytes);
  Bytes length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | length_bytes[i];
  if (length > kMostHeaderBytes) {
    refuse(path, str("its header claims ", length, " bytes; the format allows ", kMostHeaderBytes));
  }
  if (length > size - 8) {
    refuse(path,
           str("its header claims ", length, " bytes but the file has ", size, " (cut short?)"));
  }
  std::string text(length, '\0');
  opened.file_.read(8, length, text.data());
  opened.data_start_ = 8 + length;
  SafetensorsHeader header = parse_safetensors_header(text, size - opened.data_start_, path);
  opened.tensors_ = std::move(header.tensors);
  opened.metadata_ = std::move(header.metadata);
  for (std::size_t i = 0; i < opened.tensors_.size(); ++i)
    opened.index_.emplace(opened.tensors_[i].name, i);
  return opened;
}

const SafeTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

void SafetensorsFile::read(const SafeTensor& tensor, std::int64_t first, std::int64_t count,
                           void* into) const {
  ZINF_CHECK(first >= 0 && count >= 0 && count <= tensor.elements - first,
             str(tensor.name, ": range outside"));
  const int bits = bits_of(tensor.type);
  ZINF_CHECK(bits % 8 == 0,
             str(tensor.name, ": elements of ", name_of(tensor.type), " are no whole bytes"));
  const Bytes width = static_cast<Bytes>(bits / 8);
  read_bytes(tensor, static_cast<Bytes>(first) * width, static_cast<Bytes>(count) * width, into);
}

void SafetensorsFile::read_bytes(const SafeTensor& tensor, Bytes first, Bytes count,
                                 void* into) const {
  const Bytes size = tensor.end - tensor.begin;
  ZINF_CHECK(first <= size && count <= size - first,
             str(tensor.name, ": range outside the tensor"));
  try {
    file_.read(data_start_ + tensor.begin + first, count, into);
  } catch (const Error& error) {
    throw Error(error.kind(), str("tensor \"", tensor.name, "\": ", error.what()));
  }
}

}  // namespace zinf::model
