// Opening each token file format: what the header must say, and how long the file must then be.
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/data/token_file.h"

namespace zinf::data {
namespace {

constexpr std::int32_t kLlmcMagic16 = 20240520;
constexpr std::int32_t kLlmcMagic32 = 20240801;
constexpr char kMegatronMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
// Beyond this no field can be meant; sums and products of two such numbers times 8 stay within 64
// bits.
constexpr std::uint64_t kLargest = std::uint64_t{1} << 48;

[[noreturn]] void refuse(const std::string& message, const std::string& hint = "") {
  throw Error(ErrorKind::kUsage, message, hint);
}

void check_size(const std::string& path, Bytes found, Bytes expected, const std::string& reason) {
  if (found == expected) return;
  refuse(str(path, ": expected ", expected, " bytes (", reason, "), found ", found, ": ",
             found < expected ? str(expected - found, " bytes short")
                              : str(found - expected, " bytes too long")),
         "incomplete copy, or not the file that the header describes");
}

bool is_file(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

std::string index_path(const std::string& data_path) {
  const auto dot = data_path.rfind(".bin");
  return (dot != std::string::npos && dot + 4 == data_path.size() ? data_path.substr(0, dot)
                                                                  : data_path) +
         ".idx";
}

}  // namespace

TokenFile TokenFile::open(const std::string& path, int bare_width) {
  if (path.size() > 4 && path.compare(path.size() - 4, 4, ".idx") == 0) {
    return open(path.substr(0, path.size() - 4) + ".bin", bare_width);
  }
  TokenFile file{FileReader(path)};
  const Bytes size = file.data_.size();
  if (size == 0) refuse(path + " is empty: expected a token file");
  char head[8] = {};
  file.data_.read(head, std::min<Bytes>(size, sizeof head), 0);
  std::int32_t magic;
  std::memcpy(&magic, head, sizeof magic);

  const bool own = std::memcmp(head, kTokenMagic, 8) == 0;
  const bool llmc = magic == kLlmcMagic16 || magic == kLlmcMagic32;
  if (own) {
    file.open_zinf();
  } else if (llmc && size >= 1024) {
    file.open_llmc(magic);
  } else if (is_file(index_path(path))) {
    file.open_megatron();
  } else if (bare_width != 0) {
    file.open_bare(bare_width);
  } else {
    refuse(str(path,
               " has no header of a known token file (zinf, llm.c, Megatron with .idx beside it)"),
           "for a file of bare ids, say how wide they are: data.token_width: 16 (or 32)");
  }
  if (bare_width != 0 && file.width_ != bare_width) {
    refuse(str(path, ": a token width of ", bare_width * 8,
               " bits was asked for, but its header says ", file.width_ * 8));
  }
  file.check_documents();
  return file;
}

void TokenFile::open_zinf() {
  TokenFileHeader header;
  if (data_.size() < sizeof header) {
    refuse(str(path(), ": ", data_.size(), " bytes, shorter than the header of ", sizeof header,
               " bytes"));
  }
  data_.read(&header, sizeof header, 0);
  if (header.version != kTokenVersion) {
    refuse(str(path(), ": token file version ", header.version, ", this program reads version ",
               kTokenVersion),
           "prepare it again with this version");
  }
  if (header.width != 2 && header.width != 4) {
    refuse(str(path(), ": header says ", header.width, " bytes per token, expected 2 or 4"));
  }
  if (header.tokens > kLargest || header.documents > kLargest || header.vocabulary > kLargest) {
    refuse(str(path(), ": header says ", header.tokens, " tokens, ", header.documents,
               " documents, vocabulary ", header.vocabulary, ": the file is damaged"));
  }
  if (header.width == 2 && header.vocabulary > 65536) {
    refuse(str(path(), ": header says vocabulary ", header.vocabulary,
               " in 16-bit tokens, which hold 65536 ids"),
           "ids above 65535 were cut off; prepare it again with 32-bit tokens");
  }
  const Bytes documents_at = round_up(sizeof header + header.tokens * header.width, 8);
  const Bytes documents_end = documents_at + (header.documents + 1) * 8;
  const bool masked = header.mask_offset != 0;
  if (header.tokens_offset != sizeof header || header.documents_offset != documents_at ||
      (masked && header.mask_offset != documents_end)) {
    refuse(str(path(), ": section positions in the header don't follow from ", header.tokens,
               " tokens and ", header.documents, " documents"));
  }
  const Bytes expected = documents_end + (masked ? (header.tokens + 7) / 8 : 0);
  check_size(
      path(), data_.size(), expected,
      str(header.tokens, " tokens of ", header.width, " bytes, ", header.documents, " documents"));
  if (header.file_size != expected || header.trained_tokens > header.tokens) {
    refuse(str(path(), ": header says ", header.file_size, " bytes and ", header.trained_tokens,
               " trained tokens of ", header.tokens, ": it contradicts itself"));
  }
  format_ = TokenFormat::kZinf;
  width_ = static_cast<int>(header.width);
  vocabulary_ = header.vocabulary;
  tokens_ = header.tokens;
  documents_ = header.documents;
  tokens_offset_ = header.tokens_offset;
  documents_offset_ = header.documents_offset;
  mask_offset_ = header.mask_offset;
}

void TokenFile::open_llmc(std::int32_t magic) {
  std::int32_t header[256];
  data_.read(header, sizeof header, 0);
  const std::int32_t version = magic == kLlmcMagic16 ? 1 : 7;
  if (header[1] != version) {
    refuse(str(path(), ": llm.c token file version ", header[1], ", expected ", version));
  }
  format_ = TokenFormat::kLlmc;
  width_ = magic == kLlmcMagic16 ? 2 : 4;
  tokens_ = static_cast<std::uint32_t>(header[2]);
  documents_ = 1;
  tokens_offset_ = sizeof header;
  check_size(path(), data_.size(), sizeof header + tokens_ * width_,
             str("llm.c header of 1024 and ", tokens_, " tokens of ", width_, " bytes"));
}

void TokenFile::open_bare(int width) {
  ZINF_CHECK(width == 2 || width == 4, str("token width ", width));
  if (data_.size() % width != 0) {
    refuse(str(path(), ": ", data_.size(), " bytes are not a whole number of ", width * 8,
               "-bit tokens"),
           "the file was cut, or has another token width");
  }
  format_ = TokenFormat::kBare;
  width_ = width;
  tokens_ = data_.size() / width;
  documents_ = 1;
  if (width != 2 || tokens_ < 16 || tokens_ % 2 != 0) return;
  // 32-bit ids below 65536, read as 16-bit, show as a zero after every id.
  std::vector<std::int32_t> sample(std::min<std::uint64_t>(tokens_, 4096));
  read_tokens(0, sample.size(), sample.data());
  for (std::size_t i = 1; i < sample.size(); i += 2) {
    if (sample[i] != 0) return;
  }
  if (std::all_of(sample.begin(), sample.end(), [](std::int32_t id) { return id == 0; })) return;
  refuse(
      str(path(),
          ": read as 16-bit tokens, every second id is 0: this looks like a file of 32-bit tokens"),
      "data.token_width: 32");
}

void TokenFile::open_megatron() {
  index_.emplace(index_path(path()));
  const std::string& name = index_->path();
  struct [[gnu::packed]] {
    char magic[9];
    std::uint64_t version;
    std::uint8_t type;
    std::uint64_t sequences;
    std::uint64_t documents;
  } header;
  if (index_->size() < sizeof header)
    refuse(str(name, ": ", index_->size(), " bytes, too short for an index"));
  index_->read(&header, sizeof header, 0);
  if (std::memcmp(header.magic, kMegatronMagic, sizeof header.magic) != 0 || header.version != 1) {
    refuse(name + ": expected a Megatron index, version 1");
  }
  if (header.type != 8 && header.type != 4) {
    refuse(str(name, ": element type ", int{header.type}, ", expected 8 (uint16) or 4 (int32)"));
  }
  const std::uint64_t sequences = header.sequences;
  const std::uint64_t documents = header.documents;
  if (sequences > kLargest || documents > kLargest)
    refuse(str(name, ": ", sequences, " sequences: damaged"));
  check_size(name, index_->size(), sizeof header + sequences * 12 + documents * 8,
             str(sequences, " sequences, ", documents, " document marks"));
  format_ = TokenFormat::kMegatron;
  width_ = header.type == 8 ? 2 : 4;
  if (data_.size() % width_ != 0) {
    refuse(str(path(), ": ", data_.size(), " bytes are not a whole number of ", width_ * 8,
               "-bit tokens"));
  }
  tokens_ = data_.size() / width_;
  documents_ = sequences;
  sizes_offset_ = sizeof header;
  documents_offset_ = sizeof header + sequences * 4;
}

}  // namespace zinf::data
