// What a message about a full disk says beside the system's text.
#pragma once

#include <sys/statvfs.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "engine/base/bytes.h"
#include "engine/base/str.h"

namespace zinf {

// ": needed 25.2 MiB (26460160 bytes), free 0 B (0 bytes)" when `error` says that the disk, or the
// user's share of it, is full; else nothing. path: of the file that was to be written.
inline std::string missing_space(int error, const std::string& path, Bytes needed) {
  if (error != ENOSPC && error != EDQUOT) return "";
  const std::string folder = std::filesystem::path(path).parent_path().string();
  struct statvfs stats {};
  std::string text = str(": needed ", format_bytes(needed), " (", needed, " bytes)");
  if (::statvfs(folder.empty() ? "." : folder.c_str(), &stats) != 0) return text;
  const Bytes free = static_cast<Bytes>(stats.f_bavail) * stats.f_frsize;
  return text + str(", free ", format_bytes(free), " (", free, " bytes)");
}

}  // namespace zinf
