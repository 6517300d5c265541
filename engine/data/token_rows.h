// Rows of token ids cut from a corpus.
//
// Packed: a document longer than seq_len is split; full parts are rows of their own, what remains
// (and every shorter document) is packed with others, never cut again. Every token but a document's
// first is a target once: the last position of a full part predicts the first token of the next
// part. Not packed: a row is one document, cut to seq_len; tokens and mask are cut together, and no
// end token is added. Rows without any trained target are left out and counted in notes().
#pragma once

#include <memory>

#include "engine/data/corpus.h"
#include "engine/data/packing.h"
#include "engine/data/row_source.h"

namespace zinf::data {

// A run of a document's tokens as it lies in a row.
struct Fragment {
  Corpus::Document document;
  std::uint64_t begin = 0;  // within the document
  std::uint64_t inputs = 0;
  bool carries_on = false;  // the last position's target is the next token of the document
};

// Reads a fragment into row `to` of the batch at position `at`, as the row's document number
// `number`.
void fill_fragment(const Fragment& fragment, MicroBatch& batch, int to, int at, int number);
std::int64_t count_targets(const Fragment& fragment);

class PackedTokenRows : public RowSource {
 public:
  PackedTokenRows(CorpusView view, int seq_len);
  std::int64_t rows() const override;
  int padded_length(std::int64_t) const override { return seq_len_; }
  std::vector<int> padded_lengths() const override { return {seq_len_}; }
  std::int64_t tokens(std::int64_t row) const override;
  std::int64_t targets(std::int64_t row) const override;
  void fill(std::int64_t row, MicroBatch& batch, int to) const override;
  std::vector<SourceIdentity> identity() const override { return view_.corpus().identity(); }
  Bytes index_bytes() const override;
  std::vector<std::string> notes() const override { return notes_; }

 private:
  struct FullPart {
    std::uint32_t document;
    std::uint32_t part;
  };
  std::vector<Fragment> fragments(std::int64_t row) const;
  Fragment part(Corpus::Document document, std::uint64_t number) const;

  CorpusView view_;
  int seq_len_;
  std::vector<FullPart> full_;  // rows 0 .. full_.size() - 1
  PackedRows packed_;           // the rows after them; items are document numbers
  std::vector<std::string> notes_;
};

class DocumentRows : public RowSource {
 public:
  DocumentRows(CorpusView view, int seq_len);
  std::int64_t rows() const override { return static_cast<std::int64_t>(documents_.size()); }
  int padded_length(std::int64_t row) const override { return class_length(classes_[row]); }
  std::vector<int> padded_lengths() const override;
  std::int64_t tokens(std::int64_t row) const override { return fragment(row).inputs; }
  std::int64_t targets(std::int64_t row) const override { return count_targets(fragment(row)); }
  void fill(std::int64_t row, MicroBatch& batch, int to) const override;
  std::vector<SourceIdentity> identity() const override { return view_.corpus().identity(); }
  Bytes index_bytes() const override { return documents_.size() * 4 + classes_.size(); }
  std::vector<std::string> notes() const override { return notes_; }

 private:
  // Lengths are rounded up to eighths of seq_len, those to multiples of 8: at most eight shapes.
  static constexpr int kClasses = 8;
  int class_length(int number) const;
  Fragment fragment(std::int64_t row) const;

  CorpusView view_;
  int seq_len_;
  std::vector<std::uint32_t> documents_;
  std::vector<std::uint8_t> classes_;
  std::vector<std::string> notes_;
};

}  // namespace zinf::data
