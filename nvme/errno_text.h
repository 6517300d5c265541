// "No space left on device (ENOSPC)".
#pragma once

#include <cstring>
#include <string>

namespace zinf::nvme {

inline std::string errno_text(int error) {
  const char* name = ::strerrorname_np(error);
  const char* text = ::strerrordesc_np(error);
  return std::string(text ? text : "unknown error") + " (" + (name ? name : std::to_string(error)) +
         ")";
}

}  // namespace zinf::nvme
