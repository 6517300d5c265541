#include "engine/observe/tensorboard.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/observe/posix_write.h"

namespace zinf::observe {

namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0x82F63B78u : 0u);
    table[i] = value;
  }
  return table;
}

// The few protobuf encodings that an Event needs; tag = field << 3 | wire type.
template <typename Word>
std::string fixed(Word word) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(sizeof word, '\0');
  std::memcpy(bytes.data(), &word, sizeof word);
  return bytes;
}

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

std::string varint_field(int field, std::uint64_t value) {
  return varint(static_cast<std::uint64_t>(field) << 3) + varint(value);
}
std::string double_field(int field, double value) {
  return varint(static_cast<std::uint64_t>(field) << 3 | 1) + fixed(value);
}
std::string bytes_field(int field, std::string_view value) {
  return varint(static_cast<std::uint64_t>(field) << 3 | 2) + varint(value.size()) +
         std::string(value);
}
std::string float_field(int field, float value) {
  return varint(static_cast<std::uint64_t>(field) << 3 | 5) + fixed(value);
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::uint32_t crc32c(std::string_view data) {
  static constexpr auto kTable = make_table();
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char byte : data)
    crc = kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFF] ^ crc >> 8;
  return ~crc;
}

std::uint32_t masked_crc32c(std::string_view data) {
  return std::rotr(crc32c(data), 15) + 0xA282EAD8u;
}

TensorBoardWriter::TensorBoardWriter(const std::string& folder, std::uint64_t first_step) {
  std::error_code error;
  if (std::filesystem::create_directories(folder, error)) ::chmod(folder.c_str(), 0700);
  if (error)
    throw Error(ErrorKind::kFailed, str("creating folder ", folder, ": ", error.message()));
  // TensorBoard reads a folder's files in the order of their names: time first.
  char stem[48];
  std::snprintf(stem, sizeof stem, "%010lld", static_cast<long long>(wall_time()));
  for (int attempt = 0; fd_ < 0; ++attempt) {
    path_ = str(folder, "/events.out.tfevents.", stem, ".zinf.", ::getpid(), ".", attempt);
    fd_ = ::open(path_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    if (fd_ < 0 && errno != EEXIST) {
      throw Error(ErrorKind::kFailed, str("creating ", path_, ": ", std::strerror(errno)));
    }
  }
  event(bytes_field(3, "brain.Event:2"));  // Event.file_version
  if (first_step > 1) {
    // Event.session_log = SessionLog{status: START}
    event(varint_field(2, first_step) + bytes_field(7, varint_field(1, 1)));
  }
}

TensorBoardWriter::~TensorBoardWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void TensorBoardWriter::event(std::string_view body) {
  const std::string payload = double_field(1, wall_time()) + std::string(body);
  const std::string length = fixed(static_cast<std::uint64_t>(payload.size()));
  const std::string record =
      length + fixed(masked_crc32c(length)) + payload + fixed(masked_crc32c(payload));
  const int error = write_all(fd_, record);
  if (error != 0)
    throw Error(ErrorKind::kFailed, str("writing ", path_, ": ", std::strerror(error)));
}

void TensorBoardWriter::scalar(std::string_view tag, std::uint64_t step, double value) {
  // Event.summary = Summary{value: {tag, simple_value}}
  const std::string point = bytes_field(1, tag) + float_field(2, static_cast<float>(value));
  event(varint_field(2, step) + bytes_field(5, bytes_field(1, point)));
}

void TensorBoardWriter::append(const StepRecord& record) {
  scalar("train/loss", record.step, record.loss);
  scalar("train/learning_rate", record.step, record.lr);
  scalar("train/grad_norm", record.step, record.grad_norm);
  scalar("train/tokens_per_second", record.step, record.tokens_per_second);
  if (record.eval_loss) scalar("eval/loss", record.step, *record.eval_loss);
}

}  // namespace zinf::observe
