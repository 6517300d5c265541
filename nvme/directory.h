// What a directory's file system offers to swap files, found out by trying: a real aligned block is
// written, read back and deleted. Every way in which a directory can be unfit has its own message.
#pragma once

#include <string>

#include "engine/base/bytes.h"

namespace zinf::nvme {

struct DirectoryFacts {
  bool direct = false;       // O_DIRECT works here
  Bytes alignment = 4096;    // of offsets, lengths and memory; a power of two
  std::string file_system;   // "ext4", "xfs", "tmpfs", ... or a number in hex
  std::string why_buffered;  // when not direct
};

// Throws Error(kUsage) when it is missing or no directory, Error(kFailed) when it can't be written
// to or does not give back what was written, Error(kDoesNotFit) when not even a block fits.
DirectoryFacts probe_directory(const std::string& path);

// The first two of these refusals alone: writes nothing.
void check_directory(const std::string& path);

// Bytes that an unprivileged process could still write here.
Bytes free_bytes(const std::string& path);
// What a file takes of its file system; 0 where there is none.
Bytes taken_bytes(const std::string& file);
// Identifies the file system, for directories that share one.
std::uint64_t file_system_id(const std::string& path);
// Its files are memory: tmpfs, ramfs.
bool is_memory(const std::string& file_system);
bool is_in_memory(const std::string& path);  // of the path's; false where there is no such path

// Alignment of direct I/O of an open file: statx, else the block device's logical block, else 4096.
Bytes direct_alignment(int descriptor);

}  // namespace zinf::nvme
