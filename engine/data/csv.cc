#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/data/table_file.h"

namespace zinf::data {
namespace {

// Splits a csv text into records; knows the line on which each one begins.
class CsvReader {
 public:
  explicit CsvReader(const FileReader& file) : file_(file), buffer_(kMiB) {
    peek();
    if (end_ >= 3 && std::memcmp(buffer_.data(), "\xef\xbb\xbf", 3) == 0)
      at_ = 3;  // byte order mark
  }

  // false: the file has ended. A blank line is skipped.
  bool next(std::vector<std::string>& fields) {
    do {
      line_ = next_line_;
      if (!record(fields)) return false;
    } while (fields.size() == 1 && fields[0].empty() && !quoted_);
    return true;
  }
  std::int64_t line() const { return line_; }

 private:
  int peek() {
    if (at_ == end_) {
      end_ = std::min<Bytes>(buffer_.size(), file_.size() - offset_);
      file_.read(buffer_.data(), end_, offset_);
      offset_ += end_;
      at_ = 0;
    }
    return at_ == end_ ? -1 : static_cast<unsigned char>(buffer_[at_]);
  }
  int take() {
    const int c = peek();
    if (c >= 0) ++at_;
    next_line_ += c == '\n';
    return c;
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::kUsage, str(file_.path(), " line ", line_, ": ", what));
  }

  bool record(std::vector<std::string>& fields) {
    fields.clear();
    quoted_ = false;
    if (peek() < 0) return false;
    for (;;) {
      fields.emplace_back();
      if (peek() == '"') quoted(fields.back());
      int c = take();
      for (; c >= 0 && c != ',' && c != '\n'; c = take()) {
        if (c == '\r' && (peek() == '\n' || peek() < 0)) continue;
        if (c == '"' || quoted_field_)
          refuse(str("field ", fields.size(), " has a quote inside unquoted text"));
        fields.back() += static_cast<char>(c);
      }
      quoted_field_ = false;
      if (c != ',') return true;
    }
  }

  void quoted(std::string& field) {
    take();
    quoted_ = quoted_field_ = true;
    for (;;) {
      const int c = take();
      if (c < 0) refuse("a quoted field has no end");
      if (c != '"') {
        field += static_cast<char>(c);
      } else if (peek() == '"') {
        field += static_cast<char>(take());
      } else {
        return;
      }
    }
  }

  const FileReader& file_;
  std::vector<char> buffer_;
  Bytes offset_ = 0;
  std::size_t at_ = 0;
  std::size_t end_ = 0;
  std::int64_t line_ = 1;
  std::int64_t next_line_ = 1;
  bool quoted_ = false;        // the record has a quoted field
  bool quoted_field_ = false;  // the field under way was quoted and is closed
};

float parse_number(const std::string& text, const std::string& place) {
  const auto begin = text.find_first_not_of(" \t");
  if (begin == std::string::npos) {
    throw Error(ErrorKind::kUsage, str(place, ": the cell is empty, expected a number"),
                "fill in or remove rows with missing values");
  }
  const char* first = text.data() + begin;
  const char* last = text.data() + text.find_last_not_of(" \t") + 1;
  double value = 0;
  const auto [end, code] = std::from_chars(first, last, value);
  if (end != last || code == std::errc::invalid_argument) {
    throw Error(ErrorKind::kUsage, str(place, ": expected a number, found \"", text, "\""),
                "columns of text must be turned into numbers first");
  }
  // Out of range is also what is closer to zero than any number.
  if (code == std::errc::result_out_of_range &&
      std::strtod(std::string(first, last).c_str(), nullptr) == 0)
    return 0;
  if (code != std::errc() || !std::isfinite(value) ||
      std::fabs(value) > std::numeric_limits<float>::max()) {
    throw Error(ErrorKind::kUsage, str(place, ": ", text, " is not a finite 32-bit number"),
                "fill in or remove rows with missing values");
  }
  return static_cast<float>(value);
}

class CsvRows : public RowSource {
 public:
  CsvRows(CsvTable table, std::size_t target, std::vector<SourceIdentity> identity)
      : table_(std::move(table)), target_(target), identity_(std::move(identity)) {}
  std::int64_t rows() const override { return table_.rows; }
  int padded_length(std::int64_t) const override { return 1; }
  std::vector<int> padded_lengths() const override { return {1}; }
  std::int64_t tokens(std::int64_t) const override { return 1; }
  std::int64_t targets(std::int64_t) const override { return 1; }
  int feature_width() const override { return static_cast<int>(table_.columns.size()) - 1; }
  void fill(std::int64_t row, MicroBatch& batch, int to) const override {
    const float* values = table_.values.data() + row * table_.columns.size();
    float* out = batch.features.data() + static_cast<std::size_t>(to) * feature_width();
    for (std::size_t i = 0; i < table_.columns.size(); ++i) {
      if (i != target_) *out++ = values[i];
    }
    batch.labels[to] = values[target_];
    batch.targets[to] = 0;
  }
  std::vector<SourceIdentity> identity() const override { return identity_; }
  Bytes index_bytes() const override { return table_.values.capacity() * sizeof(float); }

 private:
  CsvTable table_;
  std::size_t target_;
  std::vector<SourceIdentity> identity_;
};

}  // namespace

CsvTable read_csv(const std::string& path) {
  const FileReader file(path);
  CsvReader reader(file);
  CsvTable table;
  std::vector<std::string> fields;
  if (!reader.next(table.columns))
    throw Error(ErrorKind::kUsage, path + " is empty: expected a header line");
  for (std::size_t i = 0; i < table.columns.size(); ++i) {
    if (std::find(table.columns.begin(), table.columns.begin() + i, table.columns[i]) !=
        table.columns.begin() + i) {
      throw Error(ErrorKind::kUsage,
                  str(path, " line 1: two columns are named \"", table.columns[i], "\""));
    }
  }
  while (reader.next(fields)) {
    if (fields.size() != table.columns.size()) {
      throw Error(ErrorKind::kUsage, str(path, " line ", reader.line(), ": ", fields.size(),
                                         " fields, but the header has ", table.columns.size()));
    }
    for (std::size_t i = 0; i < fields.size(); ++i) {
      table.values.push_back(parse_number(
          fields[i], str(path, " line ", reader.line(), ", column \"", table.columns[i], "\"")));
    }
    ++table.rows;
  }
  if (table.rows == 0) throw Error(ErrorKind::kUsage, path + " has a header but no row");
  return table;
}

std::unique_ptr<RowSource> open_csv(const std::vector<std::string>& paths,
                                    const std::optional<std::string>& target) {
  CsvTable all;
  std::vector<SourceIdentity> identity;
  for (const std::string& path : paths) {
    CsvTable table = read_csv(path);
    if (!identity.empty() && table.columns != all.columns) {
      throw Error(ErrorKind::kUsage, str(path, ": its columns differ from those of ", paths[0]));
    }
    identity.push_back(identify(FileReader(path)));
    all.columns = table.columns;
    all.rows += table.rows;
    if (all.values.empty()) {
      all.values = std::move(table.values);
    } else {
      all.values.insert(all.values.end(), table.values.begin(), table.values.end());
    }
  }
  all.values.shrink_to_fit();
  if (all.columns.size() < 2) {
    throw Error(ErrorKind::kUsage,
                str(paths[0], ": one column, expected at least one feature and a target"));
  }
  std::size_t column = all.columns.size() - 1;
  if (target) {
    const auto found = std::find(all.columns.begin(), all.columns.end(), *target);
    if (found == all.columns.end()) {
      std::string names;
      for (const std::string& name : all.columns) names += (names.empty() ? "" : ", ") + name;
      throw Error(ErrorKind::kUsage,
                  str(paths[0], " has no column \"", *target, "\" (data.target)"),
                  "columns: " + names);
    }
    column = found - all.columns.begin();
  }
  return std::make_unique<CsvRows>(std::move(all), column, std::move(identity));
}

}  // namespace zinf::data
