// A plain file with positioned reads and appending writes; every short transfer goes on, every
// errno is reported. For model folders only: the swap area has its own engine (nvme/).
#pragma once

#include <string>
#include <utility>

#include "engine/base/bytes.h"

namespace zinf::model {

class PosixFile {
 public:
  static PosixFile open_read(const std::string& path);
  // Created with mode 0644; an existing file is emptied.
  static PosixFile create(const std::string& path);

  PosixFile(PosixFile&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}
  PosixFile& operator=(PosixFile&& other) noexcept;
  ~PosixFile();

  const std::string& path() const { return path_; }
  Bytes size() const;
  // Exactly count bytes at offset; the end of the file before that is an Error(kFailed).
  // Thread-safe.
  void read(Bytes offset, Bytes count, void* into) const;
  void append(const void* bytes, Bytes count);
  void sync();

 private:
  PosixFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  int fd_ = -1;
  std::string path_;
};

// Whole small files (config.json, an index). more than `limit` bytes: Error(kUsage).
std::string read_text_file(const std::string& path, Bytes limit);
void write_text_file(const std::string& path, const std::string& text);
void sync_folder(const std::string& path);

}  // namespace zinf::model
