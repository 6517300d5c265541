#include "engine/data/token_writer.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/data/token_file.h"

namespace zinf::data {

TokenWriter::TokenWriter(const std::string& path, std::uint64_t vocabulary, int width)
    : path_(path),
      temporary_(str(path, ".", ::getpid(), ".tmp")),
      vocabulary_(vocabulary),
      width_(width != 0           ? width
             : vocabulary > 65536 ? 4
                                  : 2),
      file_(nullptr, &std::fclose) {
  ZINF_CHECK(width_ == 2 || width_ == 4, str("token width ", width_));
  if (width_ == 2 && vocabulary > 65536) {
    throw Error(ErrorKind::kUsage,
                str("writing ", path, ": a vocabulary of ", vocabulary,
                    " does not fit 16-bit tokens, which hold ids 0 to 65535"),
                "use 32-bit tokens");
  }
  file_.reset(std::fopen(temporary_.c_str(), "wb"));
  if (!file_)
    throw Error(ErrorKind::kFailed, str("can't write ", temporary_, ": ", std::strerror(errno)));
  const TokenFileHeader empty{};
  write(&empty, sizeof empty);
}

TokenWriter::~TokenWriter() {
  if (file_) ::unlink(temporary_.c_str());
}

void TokenWriter::write(const void* data, std::size_t bytes) {
  if (std::fwrite(data, 1, bytes, file_.get()) != bytes) {
    throw Error(ErrorKind::kFailed,
                str("writing ", bytes, " bytes to ", temporary_, ": ", std::strerror(errno)));
  }
}

void TokenWriter::add(std::span<const std::int32_t> ids, std::span<const std::uint8_t> trained) {
  ZINF_CHECK(trained.empty() || trained.size() == ids.size(), "one mask entry per id");
  const std::uint64_t first = bounds_.back();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || static_cast<std::uint64_t>(ids[i]) >= vocabulary_) {
      throw Error(ErrorKind::kUsage, str("writing ", path_, ": token ", first + i, " has id ",
                                         ids[i], ", outside the vocabulary of ", vocabulary_));
    }
    write(&ids[i], width_);  // little-endian: the low bytes come first
    const bool train = trained.empty() || trained[i] != 0;
    const std::uint64_t position = first + i;
    if (position / 8 >= mask_.size()) mask_.push_back(0);
    mask_[position / 8] |= static_cast<std::uint8_t>(train << (position % 8));
    trained_ += train;
    masked_ |= !train;
  }
  bounds_.push_back(first + ids.size());
}

void TokenWriter::finish() {
  TokenFileHeader header{};
  std::memcpy(header.magic, kTokenMagic, 8);
  header.version = kTokenVersion;
  header.width = static_cast<std::uint32_t>(width_);
  header.vocabulary = vocabulary_;
  header.tokens = bounds_.back();
  header.documents = bounds_.size() - 1;
  header.tokens_offset = sizeof header;
  const std::uint64_t tokens_end = sizeof header + header.tokens * width_;
  header.documents_offset = round_up(tokens_end, 8);
  const std::uint64_t documents_end = header.documents_offset + bounds_.size() * 8;
  header.mask_offset = masked_ ? documents_end : 0;
  header.trained_tokens = trained_;
  header.file_size = documents_end + (masked_ ? mask_.size() : 0);
  const char zeros[8] = {};
  write(zeros, header.documents_offset - tokens_end);
  write(bounds_.data(), bounds_.size() * 8);
  if (masked_) write(mask_.data(), mask_.size());
  if (std::fseek(file_.get(), 0, SEEK_SET) != 0)
    throw Error(ErrorKind::kFailed, "can't seek in " + temporary_);
  write(&header, sizeof header);
  if (std::fflush(file_.get()) != 0 || ::fsync(::fileno(file_.get())) != 0 ||
      ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    throw Error(ErrorKind::kFailed, str("can't finish ", path_, ": ", std::strerror(errno)));
  }
  file_.reset();
}

}  // namespace zinf::data
