// File systems for tests, in a mount namespace of their own.
#pragma once

#include <sched.h>
#include <sys/mount.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/nvme/test_support.h"

namespace zinf::nvme {

// What `body` returns, run in a child that may mount; "skip" where that is not allowed.
inline std::string in_own_mounts(const std::function<std::string()>& body) {
  return in_child([&]() -> std::string {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
      return "skip";
    return body();
  });
}

// A new file system in a sparse file, mounted on `directory`. false: no such tool, no loop device,
// or a kernel without that file system.
inline bool mount_image(const std::string& make, Bytes bytes, const std::string& image,
                        const std::string& directory) {
  std::ofstream(image).close();
  std::filesystem::resize_file(image, bytes);
  const std::string commands = "exec 2>/dev/null; PATH=$PATH:/sbin:/usr/sbin; " + make + " " +
                               image + " && mount -o loop " + image + " " + directory;
  return std::system(commands.c_str()) == 0;
}

}  // namespace zinf::nvme
