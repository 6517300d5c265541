#include "engine/data/token_file.h"

#include <algorithm>
#include <cstring>

#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "engine/base/str.h"

namespace zinf::data {
namespace {

constexpr std::uint64_t kSpansAtOnce = 4096;

[[noreturn]] void refuse(const std::string& message, const std::string& hint = "") {
  throw Error(ErrorKind::kUsage, message, hint);
}

}  // namespace

void TokenFile::read_spans(std::uint64_t first, std::uint64_t count,
                           std::vector<DocumentSpan>& to) const {
  to.resize(count);
  if (documents_offset_ == 0) {
    if (count > 0) to[0] = {0, tokens_};
    return;
  }
  if (format_ == TokenFormat::kMegatron) {
    std::vector<std::uint64_t> positions(count);
    std::vector<std::int32_t> sizes(count);
    index_->read(positions.data(), count * 8, documents_offset_ + first * 8);
    index_->read(sizes.data(), count * 4, sizes_offset_ + first * 4);
    for (std::uint64_t i = 0; i < count; ++i) {
      if (sizes[i] < 0 || positions[i] % width_ != 0) {
        refuse(str(index_->path(), ": document ", first + i, " has length ", sizes[i], " at byte ",
                   positions[i], ": not a position of ", width_, "-byte tokens"));
      }
      to[i] = {positions[i] / width_, static_cast<std::uint64_t>(sizes[i])};
    }
    return;
  }
  std::vector<std::uint64_t> bounds(count + 1);
  data_.read(bounds.data(), bounds.size() * 8, documents_offset_ + first * 8);
  for (std::uint64_t i = 0; i < count; ++i) {
    if (bounds[i + 1] < bounds[i]) {
      refuse(str(path(), ": document table decreases: document ", first + i, " starts at token ",
                 bounds[i], " and the next one at ", bounds[i + 1]),
             "the file is damaged; prepare it again");
    }
    to[i] = {bounds[i], bounds[i + 1] - bounds[i]};
  }
}

DocumentSpan TokenFile::document(std::uint64_t index) const {
  ZINF_CHECK(index < documents_, str("document ", index, " of ", documents_, " in ", path()));
  std::vector<DocumentSpan> span;
  read_spans(index, 1, span);
  // The table was checked when the file was opened; a file that changes meanwhile must not lead
  // outside it.
  if (span[0].begin > tokens_ || span[0].length > tokens_ - span[0].begin) {
    refuse(str(path(), ": the document table changed while in use (document ", index, ")"));
  }
  return span[0];
}

void TokenFile::for_each_document(
    const std::function<void(std::uint64_t, DocumentSpan)>& visit) const {
  std::vector<DocumentSpan> spans;
  for (std::uint64_t first = 0; first < documents_; first += kSpansAtOnce) {
    read_spans(first, std::min(kSpansAtOnce, documents_ - first), spans);
    for (std::uint64_t i = 0; i < spans.size(); ++i) visit(first + i, spans[i]);
  }
}

void TokenFile::check_documents() const {
  const std::string& table = index_ ? index_->path() : path();
  std::uint64_t end = 0;
  for_each_document([&](std::uint64_t index, DocumentSpan span) {
    if (span.begin != end) {
      refuse(str(table, ": document ", index, " starts at token ", span.begin, ", expected ", end,
                 " (where the one before it ends)"),
             "index and data don't belong together; copy or prepare both again");
    }
    if (span.length > tokens_ || span.begin > tokens_ - span.length) {
      refuse(
          str(table, ": document ", index, " ends at token ", span.begin + span.length, ", but ",
              path(), " holds ", tokens_, " tokens: it is ", span.begin + span.length - tokens_,
              " tokens short"),
          "the data file was cut, or the index belongs to another one; copy or prepare both again");
    }
    end = span.begin + span.length;
  });
  if (end != tokens_) {
    refuse(str(table, ": the documents end at token ", end, ", but ", path(), " holds ", tokens_,
               " tokens: the index is ", tokens_ - end, " tokens short"),
           "index and data don't belong together; copy or prepare both again");
  }
}

void TokenFile::read_tokens(std::uint64_t begin, std::uint64_t count, std::int32_t* to) const {
  ZINF_CHECK(begin <= tokens_ && count <= tokens_ - begin,
             str("tokens ", begin, " + ", count, " of ", tokens_));
  data_.read(to, count * width_, tokens_offset_ + begin * width_);
  if (width_ == 2) {  // widened in place, from the end
    const auto* bytes = reinterpret_cast<const char*>(to);
    for (std::uint64_t i = count; i-- > 0;) {
      std::uint16_t id;
      std::memcpy(&id, bytes + 2 * i, 2);
      to[i] = id;
    }
  }
}

void TokenFile::read_mask(std::uint64_t begin, std::uint64_t count, std::uint8_t* to) const {
  ZINF_CHECK(begin <= tokens_ && count <= tokens_ - begin,
             str("mask ", begin, " + ", count, " of ", tokens_));
  if (mask_offset_ == 0) {
    std::fill_n(to, count, std::uint8_t{1});
    return;
  }
  if (count == 0) return;
  const std::uint64_t first = begin / 8;
  std::vector<std::uint8_t> bits((begin + count - 1) / 8 - first + 1);
  data_.read(bits.data(), bits.size(), mask_offset_ + first);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t bit = begin + i - first * 8;
    to[i] = bits[bit / 8] >> (bit % 8) & 1;
  }
}

std::string TokenFile::scan(std::uint64_t vocabulary) const {
  constexpr std::uint64_t kAtOnce = std::uint64_t{1} << 18;
  Hasher hasher;
  std::vector<char> buffer(kMiB);
  const auto hash_range = [&](const FileReader& file, Bytes from, Bytes to) {
    for (Bytes at = from; at < to; at += buffer.size()) {
      const Bytes bytes = std::min<Bytes>(buffer.size(), to - at);
      file.read(buffer.data(), bytes, at);
      hasher.update(buffer.data(), bytes);
    }
  };
  hash_range(data_, 0, tokens_offset_);
  std::vector<std::int32_t> ids(kAtOnce);
  for (std::uint64_t at = 0; at < tokens_; at += kAtOnce) {
    const std::uint64_t count = std::min(kAtOnce, tokens_ - at);
    data_.read(buffer.data(), count * width_, tokens_offset_ + at * width_);
    hasher.update(buffer.data(), count * width_);
    std::uint32_t largest = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      std::uint32_t id = 0;
      std::memcpy(&id, buffer.data() + i * width_, width_);
      ids[i] = static_cast<std::int32_t>(id);
      largest = std::max(largest, id);
    }
    if (largest < vocabulary) continue;
    const auto bad = std::find_if(ids.begin(), ids.begin() + count, [&](std::int32_t id) {
      return static_cast<std::uint32_t>(id) >= vocabulary;
    });
    const std::uint64_t position = at + (bad - ids.begin());
    refuse(str(path(), ": token ", position, " has id ", static_cast<std::uint32_t>(*bad),
               ", outside the vocabulary of ", vocabulary, " (ids 0 to ", vocabulary - 1, ")"),
           "the file was made with another tokenizer, or with another token width");
  }
  hash_range(data_, tokens_offset_ + tokens_ * width_, data_.size());
  if (index_) hash_range(*index_, 0, index_->size());
  return hasher.hex();
}

}  // namespace zinf::data
