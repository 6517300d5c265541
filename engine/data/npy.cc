#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "engine/base/str.h"
#include "engine/data/table_file.h"

namespace zinf::data {
namespace {

// Of rows and of columns: so many times so many numbers of 4 bytes still fit 64 bits.
constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1;

struct NpyFile {
  FileReader file;
  Bytes offset = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

[[noreturn]] void refuse(const std::string& message, const std::string& hint = "") {
  throw Error(ErrorKind::kUsage, message, hint);
}

// The two numbers of 'shape': (rows, columns). nullopt: not two numbers, or absurd ones.
std::optional<std::pair<std::int64_t, std::int64_t>> parse_shape(const std::string& header) {
  auto at = header.find("'shape':");
  if (at == std::string::npos || (at = header.find('(', at)) == std::string::npos)
    return std::nullopt;
  std::int64_t sizes[2] = {};
  const char* next = header.data() + at + 1;
  const char* end = header.data() + header.size();
  for (int i = 0; i < 2; ++i) {
    while (next != end && *next == ' ') ++next;
    const auto [behind, code] = std::from_chars(next, end, sizes[i]);
    if (code != std::errc() || sizes[i] < 0 || sizes[i] > kMost) return std::nullopt;
    next = behind;
    if (next == end || *next != (i == 0 ? ',' : ')')) return std::nullopt;
    ++next;
  }
  return std::pair{sizes[0], sizes[1]};
}

NpyFile open_one(const std::string& path) {
  NpyFile npy{FileReader(path)};
  const Bytes size = npy.file.size();
  unsigned char head[12] = {};
  if (size < sizeof head) refuse(str(path, ": ", size, " bytes, too short for a .npy file"));
  npy.file.read(head, sizeof head, 0);
  if (std::memcmp(head, "\x93NUMPY", 6) != 0) refuse(path + " is not a .npy file");
  const int version = head[6];
  if (version < 1 || version > 3)
    refuse(str(path, ": .npy version ", version, ", expected 1 to 3"));
  const Bytes prefix = version == 1 ? 10 : 12;
  std::uint32_t length = head[8] | head[9] << 8;
  if (version > 1)
    length |= static_cast<std::uint32_t>(head[10]) << 16 | static_cast<std::uint32_t>(head[11])
                                                               << 24;
  if (length > 65536 || prefix + length > size)
    refuse(str(path, ": header of ", length, " bytes: damaged"));
  std::string header(length, '\0');
  npy.file.read(header.data(), length, prefix);
  const auto shape = parse_shape(header);
  if (header.find("'descr': '<f4'") == std::string::npos ||
      header.find("'fortran_order': False") == std::string::npos || !shape) {
    refuse(
        str(path, ": expected a two-dimensional array of little-endian float32 in C order, found ",
            header.substr(0, 100)),
        "numpy.save(path, numpy.ascontiguousarray(array, numpy.float32))");
  }
  std::tie(npy.rows, npy.columns) = *shape;
  npy.offset = prefix + length;
  const Bytes expected =
      npy.offset + static_cast<Bytes>(npy.rows) * static_cast<Bytes>(npy.columns) * 4;
  if (size != expected) {
    refuse(str(path, ": expected ", expected, " bytes for ", npy.rows, " x ", npy.columns,
               " numbers, found ", size));
  }
  if (npy.rows == 0 || npy.columns < 2) {
    refuse(str(path, ": ", npy.rows, " x ", npy.columns,
               " numbers; expected rows, and columns for features and a label"));
  }
  return npy;
}

void check_finite(const NpyFile& npy) {
  std::vector<float> values(kMiB / 4);
  const std::int64_t total = npy.rows * npy.columns;
  for (std::int64_t at = 0; at < total; at += static_cast<std::int64_t>(values.size())) {
    const std::int64_t count = std::min<std::int64_t>(values.size(), total - at);
    npy.file.read(values.data(), count * 4, npy.offset + at * 4);
    for (std::int64_t i = 0; i < count; ++i) {
      if (std::isfinite(values[i])) continue;
      refuse(str(npy.file.path(), ": row ", (at + i) / npy.columns, ", column ",
                 (at + i) % npy.columns, " is ", values[i], ", expected a finite number"));
    }
  }
}

class NpyRows : public RowSource {
 public:
  explicit NpyRows(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      files_.push_back(open_one(path));
      if (files_.back().columns != files_[0].columns) {
        refuse(str(path, ": ", files_.back().columns, " columns, but ", paths[0], " has ",
                   files_[0].columns));
      }
      check_finite(files_.back());
      identity_.push_back(identify(files_.back().file));
      rows_ += files_.back().rows;
    }
  }
  std::int64_t rows() const override { return rows_; }
  int padded_length(std::int64_t) const override { return 1; }
  std::vector<int> padded_lengths() const override { return {1}; }
  std::int64_t tokens(std::int64_t) const override { return 1; }
  std::int64_t targets(std::int64_t) const override { return 1; }
  int feature_width() const override { return static_cast<int>(files_[0].columns - 1); }
  void fill(std::int64_t row, MicroBatch& batch, int to) const override {
    std::size_t number = 0;
    while (row >= files_[number].rows) row -= files_[number++].rows;
    const NpyFile& npy = files_[number];
    std::vector<float> values(npy.columns);
    npy.file.read(values.data(), npy.columns * 4, npy.offset + row * npy.columns * 4);
    std::copy(values.begin(), values.end() - 1,
              batch.features.begin() + static_cast<std::int64_t>(to) * feature_width());
    batch.labels[to] = values.back();
    batch.targets[to] = 0;
  }
  std::vector<SourceIdentity> identity() const override { return identity_; }
  Bytes index_bytes() const override { return 0; }

 private:
  std::vector<NpyFile> files_;
  std::vector<SourceIdentity> identity_;
  std::int64_t rows_ = 0;
};

}  // namespace

std::unique_ptr<RowSource> open_npy(const std::vector<std::string>& paths) {
  return std::make_unique<NpyRows>(paths);
}

SourceIdentity identify(const FileReader& file) {
  Hasher hasher;
  std::vector<char> buffer(kMiB);
  for (Bytes at = 0; at < file.size(); at += buffer.size()) {
    const Bytes bytes = std::min<Bytes>(buffer.size(), file.size() - at);
    file.read(buffer.data(), bytes, at);
    hasher.update(buffer.data(), bytes);
  }
  return {file.path(), file.size(), hasher.hex()};
}

}  // namespace zinf::data
