// Texts of I/O failures: what was attempted, where, what the kernel said, what to do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "nvme/io_engine.h"
#include "nvme/io_request.h"

namespace zinf::nvme {

struct FailedBlock {
  IoOp op = IoOp::kRead;
  std::string path;
  int descriptor = -1;
  std::uint64_t offset = 0;
  Bytes bytes = 0;
};

// A system call failed with this errno.
std::shared_ptr<const IoFailure> failed_with(const FailedBlock& block, int error_number);
// A transfer stopped making progress: the end of the file, or a drive that moves nothing.
std::shared_ptr<const IoFailure> failed_short(const FailedBlock& block, Bytes moved);
// No completion arrived in time.
std::shared_ptr<const IoFailure> failed_stalled(const FailedBlock& block, double seconds);

}  // namespace zinf::nvme
