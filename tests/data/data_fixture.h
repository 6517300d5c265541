// Small token files in a folder of their own, and the text of the error that a call throws.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/data/token_writer.h"

namespace zinf::data {

class DataTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "zinf-data-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // Document d of length n holds base_d, base_d + 1, ...; base_d = 100 d.
  std::string counted_file(const std::string& name, const std::vector<int>& lengths) const {
    TokenWriter writer(path(name), 60000);
    for (std::size_t d = 0; d < lengths.size(); ++d) {
      std::vector<std::int32_t> ids(lengths[d]);
      for (int i = 0; i < lengths[d]; ++i) ids[i] = static_cast<std::int32_t>(100 * d + i);
      writer.add(ids);
    }
    writer.finish();
    return path(name);
  }

  void write_bytes(const std::string& name, const void* data, std::size_t bytes) const {
    std::ofstream(path(name), std::ios::binary).write(static_cast<const char*>(data), bytes);
  }
  template <typename T>
  void write_vector(const std::string& name, const std::vector<T>& values) const {
    write_bytes(name, values.data(), values.size() * sizeof(T));
  }
  void write_text(const std::string& name, const std::string& text) const {
    write_bytes(name, text.data(), text.size());
  }

  std::filesystem::path folder_;
};

template <typename Call>
std::string error_of(Call call, ErrorKind kind = ErrorKind::kUsage) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "no error";
}

}  // namespace zinf::data
