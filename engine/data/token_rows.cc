#include "engine/data/token_rows.h"

#include <algorithm>
#include <numeric>

#include "engine/base/error.h"
#include "engine/base/str.h"

namespace zinf::data {
namespace {

// Tokens that take part in the fragment: inputs, and the one behind that only is a target.
std::uint64_t tokens_read(const Fragment& fragment) {
  return fragment.inputs + (fragment.carries_on ? 1 : 0);
}

}  // namespace

void fill_fragment(const Fragment& fragment, MicroBatch& batch, int to, int at, int number) {
  const std::uint64_t count = tokens_read(fragment);
  std::vector<std::int32_t> ids(count);
  std::vector<std::uint8_t> trained(count);
  const std::uint64_t begin = fragment.document.begin + fragment.begin;
  fragment.document.file->read_tokens(begin, count, ids.data());
  fragment.document.file->read_mask(begin, count, trained.data());
  const std::size_t base = static_cast<std::size_t>(to) * batch.length + at;
  for (std::uint64_t i = 0; i < fragment.inputs; ++i) {
    batch.ids[base + i] = ids[i];
    batch.positions[base + i] = static_cast<std::int32_t>(i);
    batch.documents[base + i] = number;
    if (i + 1 < count && trained[i + 1]) batch.targets[base + i] = ids[i + 1];
  }
}

std::int64_t count_targets(const Fragment& fragment) {
  const std::uint64_t count = tokens_read(fragment);
  if (count < 2) return 0;
  if (!fragment.document.file->has_mask()) return static_cast<std::int64_t>(count - 1);
  std::vector<std::uint8_t> trained(count - 1);
  fragment.document.file->read_mask(fragment.document.begin + fragment.begin + 1, count - 1,
                                    trained.data());
  return std::accumulate(trained.begin(), trained.end(), std::int64_t{0});
}

PackedTokenRows::PackedTokenRows(CorpusView view, int seq_len)
    : view_(std::move(view)), seq_len_(seq_len) {
  ZINF_CHECK(seq_len > 0, str("seq_len ", seq_len));
  std::vector<Piece> rest;
  std::uint64_t split = 0;
  std::uint64_t left_out = 0;
  view_.for_each_document([&](std::uint64_t index, Corpus::Document document) {
    const std::uint64_t parts = document.length / seq_len_;
    split += document.length > static_cast<std::uint64_t>(seq_len_);
    bool used = false;
    for (std::uint64_t number = 0; number <= parts; ++number) {
      const Fragment fragment = part(document, number);
      if (count_targets(fragment) == 0) continue;
      used = true;
      if (number < parts) {
        full_.push_back({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(number)});
      } else {
        rest.push_back(
            {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(fragment.inputs)});
      }
    }
    left_out += !used;
  });
  packed_ = pack(std::move(rest), seq_len_);
  full_.shrink_to_fit();
  if (split > 0)
    notes_.push_back(
        str(split, " documents are longer than seq_len ", seq_len_, " and were split"));
  if (left_out > 0)
    notes_.push_back(str(left_out, " documents have no token to train on and are left out"));
}

Fragment PackedTokenRows::part(Corpus::Document document, std::uint64_t number) const {
  const std::uint64_t begin = number * seq_len_;
  const std::uint64_t inputs = std::min<std::uint64_t>(seq_len_, document.length - begin);
  return {document, begin, inputs, begin + inputs < document.length};
}

std::int64_t PackedTokenRows::rows() const {
  return static_cast<std::int64_t>(full_.size() + packed_.rows());
}

std::vector<Fragment> PackedTokenRows::fragments(std::int64_t row) const {
  const std::size_t number = row;
  if (number < full_.size())
    return {part(view_.document(full_[number].document), full_[number].part)};
  std::vector<Fragment> fragments;
  const std::size_t packed = number - full_.size();
  for (std::uint32_t i = packed_.first[packed]; i < packed_.first[packed + 1]; ++i) {
    const Corpus::Document document = view_.document(packed_.items[i]);
    fragments.push_back(part(document, document.length / seq_len_));
  }
  return fragments;
}

std::int64_t PackedTokenRows::tokens(std::int64_t row) const {
  std::int64_t sum = 0;
  for (const Fragment& fragment : fragments(row)) sum += fragment.inputs;
  return sum;
}

std::int64_t PackedTokenRows::targets(std::int64_t row) const {
  std::int64_t sum = 0;
  for (const Fragment& fragment : fragments(row)) sum += count_targets(fragment);
  return sum;
}

void PackedTokenRows::fill(std::int64_t row, MicroBatch& batch, int to) const {
  int at = 0;
  int number = 0;
  for (const Fragment& fragment : fragments(row)) {
    fill_fragment(fragment, batch, to, at, number++);
    at += static_cast<int>(fragment.inputs);
  }
}

Bytes PackedTokenRows::index_bytes() const {
  return full_.capacity() * sizeof(FullPart) +
         (packed_.items.capacity() + packed_.first.capacity()) * 4;
}

DocumentRows::DocumentRows(CorpusView view, int seq_len)
    : view_(std::move(view)), seq_len_(seq_len) {
  ZINF_CHECK(seq_len > 0, str("seq_len ", seq_len));
  std::uint64_t cut = 0;
  std::uint64_t tokens_cut = 0;
  std::uint64_t tokens_all = 0;
  std::uint64_t left_out = 0;
  view_.for_each_document([&](std::uint64_t index, Corpus::Document document) {
    const std::uint64_t kept = std::min<std::uint64_t>(document.length, seq_len_);
    cut += kept < document.length;
    tokens_cut += document.length - kept;
    tokens_all += document.length;
    if (count_targets({document, 0, kept, false}) == 0) {
      ++left_out;
      return;
    }
    int number = 0;
    while (static_cast<std::uint64_t>(class_length(number)) < kept) ++number;
    documents_.push_back(static_cast<std::uint32_t>(index));
    classes_.push_back(static_cast<std::uint8_t>(number));
  });
  documents_.shrink_to_fit();
  classes_.shrink_to_fit();
  if (cut > 0) {
    notes_.push_back(str(cut, " rows are longer than seq_len ", seq_len_, " and were cut: ",
                         tokens_cut, " of ", tokens_all, " tokens are not trained on"));
  }
  if (left_out > 0) {
    notes_.push_back(str(left_out, " rows have no token to train on within seq_len ", seq_len_,
                         " and are left out"));
  }
}

int DocumentRows::class_length(int number) const {
  const int eighth = (seq_len_ * (number + 1) + kClasses - 1) / kClasses;
  return std::min(seq_len_, (eighth + 7) / 8 * 8);
}

std::vector<int> DocumentRows::padded_lengths() const {
  bool present[kClasses] = {};
  for (const std::uint8_t number : classes_) present[number] = true;
  std::vector<int> lengths;
  for (int number = 0; number < kClasses; ++number) {
    if (present[number]) lengths.push_back(class_length(number));
  }
  return lengths;
}

Fragment DocumentRows::fragment(std::int64_t row) const {
  const Corpus::Document document = view_.document(documents_[row]);
  return {document, 0, std::min<std::uint64_t>(document.length, seq_len_), false};
}

void DocumentRows::fill(std::int64_t row, MicroBatch& batch, int to) const {
  fill_fragment(fragment(row), batch, to, 0, 0);
}

}  // namespace zinf::data
