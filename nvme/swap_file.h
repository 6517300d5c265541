// A preallocated file of fixed size: direct where the file system has it, mode 0600, locked so that
// two processes never share it, never filled with zeros (what was not written reads as zeros all
// the same).
#pragma once

#include <string>

#include "engine/base/bytes.h"
#include "nvme/directory.h"

namespace zinf::nvme {

class SwapFile {
 public:
  // Takes the lock, then the space. `existing`: whether a file of this name may be there (it is
  // then emptied). Errors, each with its own text: present, in use, size limit, needed and free
  // space, file system errors.
  static SwapFile create(const std::string& path, Bytes bytes, const DirectoryFacts& facts,
                         bool replace);
  // Errors: missing, in use, not a regular file. read_only: takes no lock, so others may use it.
  static SwapFile reopen(const std::string& path, const DirectoryFacts& facts,
                         bool read_only = false);

  SwapFile(SwapFile&& other) noexcept;
  SwapFile& operator=(SwapFile&&) = delete;
  ~SwapFile();  // closes; the file stays

  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  Bytes bytes() const { return bytes_; }
  bool direct() const { return direct_; }
  Bytes alignment() const { return alignment_; }

  // fdatasync; throws Error.
  void sync() const;
  void remove() const;  // unlinks the name

 private:
  SwapFile(int descriptor, std::string path, const DirectoryFacts& facts);
  void lock() const;
  void preallocate(Bytes bytes);

  int descriptor_ = -1;
  std::string path_;
  Bytes bytes_ = 0;
  bool direct_ = false;
  Bytes alignment_ = 4096;
};

// Throws Error(kDoesNotFit) naming needed and free bytes, before anything is created. `present`:
// bytes that files about to be replaced give back.
void check_space(const std::string& directory, Bytes needed, Bytes present);
// Throws Error(kDoesNotFit) when RLIMIT_FSIZE forbids a file of this size.
void check_file_size_limit(const std::string& path, Bytes bytes);

}  // namespace zinf::nvme
