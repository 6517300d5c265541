#include "engine/data/corpus.h"

#include <algorithm>
#include <cmath>

#include "engine/base/error.h"
#include "engine/base/random.h"
#include "engine/base/str.h"
#include "engine/data/permutation.h"

namespace zinf::data {
namespace {
constexpr std::uint64_t kEvalSplit = 0x6576616c;  // what the random stream is for
}

Corpus::Corpus(const std::vector<std::string>& paths, std::uint64_t vocabulary, int bare_width) {
  first_document_.push_back(0);
  for (const std::string& path : paths) {
    files_.push_back(TokenFile::open(path, bare_width));
    const TokenFile& file = files_.back();
    if (file.tokens() == 0) throw Error(ErrorKind::kUsage, path + " holds no token");
    identity_.push_back({path, file.file_bytes(), file.scan(vocabulary)});
    first_document_.push_back(first_document_.back() + file.documents());
  }
  if (documents() >= std::uint64_t{1} << 32) {
    throw Error(ErrorKind::kUsage, str(documents(), " documents; at most 2^32 - 1 can be indexed"));
  }
}

std::uint64_t Corpus::tokens() const {
  std::uint64_t sum = 0;
  for (const TokenFile& file : files_) sum += file.tokens();
  return sum;
}

bool Corpus::has_mask() const {
  return std::any_of(files_.begin(), files_.end(),
                     [](const TokenFile& file) { return file.has_mask(); });
}

Corpus::Document Corpus::document(std::uint64_t index) const {
  const auto next = std::upper_bound(first_document_.begin(), first_document_.end(), index);
  const std::size_t number = next - first_document_.begin() - 1;
  const DocumentSpan span = files_[number].document(index - first_document_[number]);
  return {&files_[number], span.begin, span.length};
}

void Corpus::for_each_document(const std::function<void(std::uint64_t, Document)>& visit) const {
  for (std::size_t i = 0; i < files_.size(); ++i) {
    files_[i].for_each_document([&](std::uint64_t index, DocumentSpan span) {
      visit(first_document_[i] + index, {&files_[i], span.begin, span.length});
    });
  }
}

CorpusView::CorpusView(std::shared_ptr<const Corpus> corpus, CorpusPart part, double eval_fraction,
                       std::uint64_t seed)
    : corpus_(std::move(corpus)), part_(part), key_(random_key(seed, kEvalSplit)) {
  if (part == CorpusPart::kAll) return;
  ZINF_CHECK(eval_fraction > 0 && eval_fraction < 1, str("eval fraction ", eval_fraction));
  const std::uint64_t documents = corpus_->documents();
  if (documents < 2) {
    cut_fraction_ = eval_fraction;
    return;
  }
  const auto wanted =
      static_cast<std::uint64_t>(std::llround(eval_fraction * static_cast<double>(documents)));
  eval_documents_ = std::clamp<std::uint64_t>(wanted, 1, documents - 1);
}

Corpus::Document CorpusView::cut(Corpus::Document document) const {
  if (cut_fraction_ == 0) return document;
  const auto eval = static_cast<std::uint64_t>(
      std::llround(cut_fraction_ * static_cast<double>(document.length)));
  if (part_ == CorpusPart::kEval) document.begin += document.length - eval;
  document.length = part_ == CorpusPart::kEval ? eval : document.length - eval;
  return document;
}

void CorpusView::for_each_document(
    const std::function<void(std::uint64_t, Corpus::Document)>& visit) const {
  const Permutation order(corpus_->documents(), key_);
  corpus_->for_each_document([&](std::uint64_t index, Corpus::Document document) {
    const bool split = part_ != CorpusPart::kAll && cut_fraction_ == 0;
    if (split && (order(index) < eval_documents_) != (part_ == CorpusPart::kEval)) return;
    visit(index, cut(document));
  });
}

}  // namespace zinf::data
