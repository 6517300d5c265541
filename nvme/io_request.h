// A request to a lane and what comes of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/base/bytes.h"
#include "engine/base/error.h"

namespace zinf::nvme {

// An I/O error kept as a value until somebody waits for it.
struct IoFailure {
  int error_number =
      0;  // errno; 0 where no system call failed (end of file, damaged page, no answer)
  std::string message;  // names operation, path, offset, length, errno
  std::string hint;
  Error to_error() const { return Error(ErrorKind::kFailed, message, hint); }
};

struct IoResult {
  std::shared_ptr<const IoFailure>
      failure;  // null: all bytes were moved. Shared: copied along callback chains
  // Stand-alone time of the request: the drive's busy time, dealt out to the blocks as they
  // complete. Sums over requests to the lane's busy time, however they overlap.
  double busy_seconds = 0;

  bool ok() const { return failure == nullptr; }
  void throw_if_failed() const {
    if (failure) throw failure->to_error();
  }
};

// Runs in the lane's thread: it must not block or throw. It may submit further requests.
using IoCallback = std::function<void(const IoResult&)>;

}  // namespace zinf::nvme
