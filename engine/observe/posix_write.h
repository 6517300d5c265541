// write(2) until all is written.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace zinf::observe {

// 0, or the errno of the write that failed; what was written before it stays.
inline int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t wrote = ::write(fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return errno;
    if (wrote == 0) return EIO;
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
  return 0;
}

}  // namespace zinf::observe
