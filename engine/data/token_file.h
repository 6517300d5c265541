// Token files: token ids on disk with document boundaries and, optionally, which tokens are trained
// on. Own format (docs/formats/token-file.md), and read-only: llm.c .bin, bare uint16/uint32
// (nanoGPT), Megatron .bin + .idx. Reads ranges; keeps nothing of the data in memory. Safe for
// concurrent reads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/file_reader.h"

namespace zinf::data {

struct DocumentSpan {
  std::uint64_t begin = 0;   // first token, counted from the file's first token
  std::uint64_t length = 0;  // tokens
};

enum class TokenFormat { kZinf, kLlmc, kBare, kMegatron };

// The fixed part of the own format, byte for byte, little-endian. See docs/formats/token-file.md.
struct TokenFileHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t width;       // bytes per token: 2 or 4
  std::uint64_t vocabulary;  // every id is below it
  std::uint64_t tokens;
  std::uint64_t documents;
  std::uint64_t tokens_offset;     // bytes from the file's start
  std::uint64_t documents_offset;  // documents + 1 token positions, 64 bits each
  std::uint64_t
      mask_offset;  // one bit per token, least significant first; 0: every token is trained
  std::uint64_t trained_tokens;
  std::uint64_t file_size;
  char source_hash[32];  // hexadecimal digits or zeros
  char tokenizer_hash[32];
  char reserved[48];
};
static_assert(sizeof(TokenFileHeader) == 192);
constexpr char kTokenMagic[9] = "ZINFTOKS";
constexpr std::uint32_t kTokenVersion = 1;

class TokenFile {
 public:
  // bare_width 0: the format is told by the file; 2 or 4: a file without any header, ids of that
  // many bytes, one document. Checks header, sizes and the whole document table: Error(kUsage) says
  // which file, where, by how much.
  static TokenFile open(const std::string& path, int bare_width = 0);

  const std::string& path() const { return data_.path(); }
  TokenFormat format() const { return format_; }
  std::uint64_t tokens() const { return tokens_; }
  std::uint64_t documents() const { return documents_; }
  std::uint64_t vocabulary() const { return vocabulary_; }  // 0: the file doesn't say
  int width() const { return width_; }
  bool has_mask() const { return mask_offset_ != 0; }
  Bytes file_bytes() const { return data_.size() + (index_ ? index_->size() : 0); }

  DocumentSpan document(std::uint64_t index) const;
  // All documents in order, read in one pass.
  void for_each_document(const std::function<void(std::uint64_t, DocumentSpan)>& visit) const;

  // `to` receives `count` ids from token `begin` on. They are not checked against a vocabulary: see
  // scan().
  void read_tokens(std::uint64_t begin, std::uint64_t count, std::int32_t* to) const;
  // 1 where the token is trained on.
  void read_mask(std::uint64_t begin, std::uint64_t count, std::uint8_t* to) const;

  // Reads the file once: every id must be below `vocabulary` (else Error(kUsage) with position and
  // value). Returns the hash of all its bytes, the data identity.
  std::string scan(std::uint64_t vocabulary) const;

 private:
  explicit TokenFile(FileReader data) : data_(std::move(data)) {}
  void open_zinf();
  void open_llmc(std::int32_t magic);
  void open_bare(int width);
  void open_megatron();
  void check_documents() const;
  void read_spans(std::uint64_t first, std::uint64_t count, std::vector<DocumentSpan>& to) const;

  FileReader data_;
  std::optional<FileReader> index_;  // Megatron's .idx
  TokenFormat format_ = TokenFormat::kZinf;
  int width_ = 2;
  std::uint64_t vocabulary_ = 0;
  std::uint64_t tokens_ = 0;
  std::uint64_t documents_ = 0;
  Bytes tokens_offset_ = 0;
  Bytes documents_offset_ = 0;  // 0: one document, no table
  Bytes sizes_offset_ = 0;      // Megatron: 32-bit lengths beside 64-bit byte positions
  Bytes mask_offset_ = 0;
};

}  // namespace zinf::data
