// What the tests of this room share: a directory that goes away, aligned memory, patterns, waiting,
// forked children.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>

#include "engine/base/error.h"
#include "engine/base/random.h"
#include "nvme/io_request.h"

namespace zinf::nvme {

// A fresh directory on a real file system (the build folder's), removed at the end.
class TestDirectory {
 public:
  explicit TestDirectory(
      const std::string& parent = std::filesystem::temp_directory_path().string()) {
    std::string name = parent + "/zinf-nvme-test-XXXXXX";
    if (!::mkdtemp(name.data())) throw std::runtime_error("mkdtemp " + name);
    path_ = name;
  }
  ~TestDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class Memory {
 public:
  explicit Memory(std::size_t bytes)
      : bytes_(bytes),
        data_(static_cast<std::byte*>(std::aligned_alloc(4096, round_up(bytes + 1, 4096))),
              &std::free) {
    std::memset(data_.get(), 0xEE, bytes);
  }
  std::byte* data() const { return data_.get(); }
  std::size_t size() const { return bytes_; }
  void fill(std::uint64_t seed) {
    for (std::size_t i = 0; i < bytes_; i += 8) {
      const std::uint64_t word = random_bits(seed, i);
      std::memcpy(data_.get() + i, &word, std::min<std::size_t>(8, bytes_ - i));
    }
  }
  bool operator==(const Memory& other) const {
    return bytes_ == other.bytes_ && std::memcmp(data_.get(), other.data_.get(), bytes_) == 0;
  }

 private:
  std::size_t bytes_;
  std::unique_ptr<std::byte, decltype(&std::free)> data_;
};

// Runs `start` with a callback and waits for its result.
inline IoResult wait_for(const std::function<void(IoCallback)>& start) {
  std::promise<IoResult> done;
  start([&done](const IoResult& result) { done.set_value(result); });
  return done.get_future().get();
}

// The text of the zinf::Error that `run` throws; empty when it throws none.
inline std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Runs `body` in a child, which may lose privileges and limits; returns what it returned ("" on
// success).
inline std::string in_child(const std::function<std::string()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) return "pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    std::string text;
    try {
      text = body();
    } catch (const std::exception& error) {
      text = std::string("threw: ") + error.what();
    }
    [[maybe_unused]] const auto written = ::write(ends[1], text.data(), text.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    text += " [child ended with status " + std::to_string(status) + "]";
  return text;
}

}  // namespace zinf::nvme
