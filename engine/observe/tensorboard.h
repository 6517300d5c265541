// TensorBoard event files, written directly: records of length, masked CRC32C, payload, masked
// CRC32C, where the payload is TensorFlow's Event message (event.proto, summary.proto) with
// simple_value scalars.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/observe/step_record.h"

namespace zinf::observe {

// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78).
std::uint32_t crc32c(std::string_view data);
// TFRecord's mask: rotate right by 15, add 0xA282EAD8.
std::uint32_t masked_crc32c(std::string_view data);

// One thread. Each process writes a file of its own into the folder, as TensorBoard expects; a
// resumed run's file begins with a session start that makes TensorBoard drop older points from
// first_step on.
class TensorBoardWriter {
 public:
  // folder is created (0700) if missing. first_step: the first step this process will write. Throws
  // Error(kFailed).
  TensorBoardWriter(const std::string& folder, std::uint64_t first_step);
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  // train/loss, train/learning_rate, train/grad_norm, train/tokens_per_second, and eval/loss where
  // known. Non-finite values are written as they are; kUnknown ones too (TensorBoard shows NaN as a
  // triangle).
  void append(const StepRecord& record);
  void scalar(std::string_view tag, std::uint64_t step, double value);
  const std::string& path() const { return path_; }

 private:
  void event(std::string_view body);

  std::string path_;
  int fd_ = -1;
};

}  // namespace zinf::observe
