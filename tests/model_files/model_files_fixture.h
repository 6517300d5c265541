// Model folders made by hand, byte by byte, and the text of the error that a call throws.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/model/float_convert.h"
#include "engine/model/model_spec.h"
#include "engine/model/safetensors_writer.h"

namespace zinf::model {

class ModelFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "zinf-model-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  void write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(path(name), std::ios::binary) << bytes;
  }
  std::string read(const std::string& name) const {
    std::ifstream in(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::filesystem::path folder_;
};

// A file's bytes from a header's text and the data, with the true header length.
inline std::string raw_safetensors(const std::string& header, const std::string& data) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i));
  return file + header + data;
}

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// A tensor with its data, for whole files.
struct Given {
  std::string name;
  SafeType type;
  std::vector<std::int64_t> shape;
  std::string data;
};

inline Given given_fp32(const std::string& name, const std::vector<std::int64_t>& shape,
                        const std::vector<float>& values) {
  return {name, SafeType::kF32, shape, bytes_of(values)};
}

inline Given given_bf16(const std::string& name, const std::vector<std::int64_t>& shape,
                        const std::vector<float>& values) {
  std::vector<std::uint16_t> halves;
  for (const float value : values) halves.push_back(to_bf16_even(value));
  return {name, SafeType::kBF16, shape, bytes_of(halves)};
}

inline void write_safetensors(const std::string& path, const std::vector<Given>& tensors) {
  std::vector<TensorDeclaration> declared;
  for (const Given& tensor : tensors) declared.push_back({tensor.name, tensor.type, tensor.shape});
  SafetensorsWriter writer(path, declared);
  for (const Given& tensor : tensors) writer.append(tensor.data.data(), tensor.data.size());
  writer.finish();
}

// n values that bf16 holds exactly: small multiples of 1/8, different for each `start`.
inline std::vector<float> counted(std::int64_t n, int start) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < n; ++i)
    values.push_back(static_cast<float>((start * 37 + i) % 200 - 100) / 8);
  return values;
}

inline TensorSpec spec_tensor(const std::string& name, const std::vector<std::int64_t>& shape) {
  TensorSpec tensor;
  tensor.name = name;
  tensor.shape = shape;
  return tensor;
}

inline PieceSpec spec_piece(const std::string& name, const std::vector<TensorSpec>& tensors) {
  PieceSpec piece;
  piece.name = name;
  piece.tensors = tensors;
  lay_out(piece);
  return piece;
}

template <typename Call>
std::string error_of(Call call, ErrorKind kind = ErrorKind::kUsage) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), text.npos) << "\"" << part << "\" is not in: " << text;
}

}  // namespace zinf::model
