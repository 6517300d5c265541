// A file opened for reading by position. Every failure is an Error that names path, offset and
// length. Safe for concurrent reads. A call that hangs is longest_call() (engine/base/under_way.h).
#pragma once

#include <string>

#include "engine/base/bytes.h"

namespace zinf::data {

class FileReader {
 public:
  explicit FileReader(
      const std::string& path);  // Error(kUsage) when it can't be opened or is no regular file
  ~FileReader();
  FileReader(FileReader&& other) noexcept;
  FileReader& operator=(FileReader&& other) noexcept;
  FileReader(const FileReader&) = delete;

  // Reads exactly `bytes` bytes. The end of the file, or an I/O error: Error(kFailed).
  void read(void* to, Bytes bytes, Bytes offset) const;

  const std::string& path() const { return path_; }
  Bytes size() const { return size_; }

 private:
  std::string path_;
  int fd_ = -1;
  Bytes size_ = 0;
};

}  // namespace zinf::data
