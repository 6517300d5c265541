// Writes a token file (docs/formats/token-file.md) document by document; it appears under its name
// only when whole.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace zinf::data {

class TokenWriter {
 public:
  // width 0: 2 bytes per token where the vocabulary allows it, else 4.
  TokenWriter(const std::string& path, std::uint64_t vocabulary, int width = 0);
  ~TokenWriter();  // without finish(): nothing is left behind

  // trained: empty (all), or one entry per id. An id outside the vocabulary or the width:
  // Error(kUsage).
  void add(std::span<const std::int32_t> ids, std::span<const std::uint8_t> trained = {});
  void finish();

 private:
  void write(const void* data, std::size_t bytes);

  std::string path_;
  std::string temporary_;
  std::uint64_t vocabulary_;
  int width_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::vector<std::uint64_t> bounds_{0};
  std::vector<std::uint8_t> mask_;
  bool masked_ = false;
  std::uint64_t trained_ = 0;
};

}  // namespace zinf::data
