// Several token files as one list of documents, and the part of it that trains or evaluates.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/row_source.h"
#include "engine/data/token_file.h"

namespace zinf::data {

enum class CorpusPart { kAll, kTrain, kEval };

class Corpus {
 public:
  // Opens and scans every file (see TokenFile::scan). bare_width as in TokenFile::open.
  Corpus(const std::vector<std::string>& paths, std::uint64_t vocabulary, int bare_width = 0);

  std::uint64_t documents() const { return first_document_.back(); }
  std::uint64_t tokens() const;
  bool has_mask() const;
  const std::vector<SourceIdentity>& identity() const { return identity_; }

  struct Document {
    const TokenFile* file = nullptr;
    std::uint64_t begin = 0;  // in the file
    std::uint64_t length = 0;
  };
  Document document(std::uint64_t index) const;
  void for_each_document(const std::function<void(std::uint64_t, Document)>& visit) const;

 private:
  std::vector<TokenFile> files_;
  std::vector<std::uint64_t> first_document_;  // per file, and the total
  std::vector<SourceIdentity> identity_;
};

// Which documents belong to a part: exactly round(eval_fraction x documents), at least one, drawn
// by seed, evaluate. A corpus of one document is cut instead: its last eval_fraction tokens
// evaluate.
class CorpusView {
 public:
  CorpusView(std::shared_ptr<const Corpus> corpus, CorpusPart part = CorpusPart::kAll,
             double eval_fraction = 0, std::uint64_t seed = 0);

  const Corpus& corpus() const { return *corpus_; }
  Corpus::Document document(std::uint64_t index) const { return cut(corpus_->document(index)); }
  // Documents of this part, with their number in the corpus, in order.
  void for_each_document(const std::function<void(std::uint64_t, Corpus::Document)>& visit) const;

 private:
  Corpus::Document cut(Corpus::Document document) const;

  std::shared_ptr<const Corpus> corpus_;
  CorpusPart part_;
  std::uint64_t eval_documents_ = 0;
  double cut_fraction_ = 0;  // not 0: one document, cut by tokens
  std::uint64_t key_ = 0;
};

}  // namespace zinf::data
