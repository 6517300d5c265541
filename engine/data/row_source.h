// What a loader draws from: numbered rows (a packed row of documents, a conversation, a line of a
// table), in the order of the source. Reading is const and safe from several threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/data/batch.h"

namespace zinf::data {

// For the manifest: resuming onto other data is refused.
struct SourceIdentity {
  std::string path;  // or "random"
  Bytes bytes = 0;
  std::string hash;  // 32 hexadecimal digits
  bool operator==(const SourceIdentity&) const = default;
};

class RowSource {
 public:
  // rows() of a source that never ends: every row number is valid.
  static constexpr std::int64_t kEndless = -1;

  virtual ~RowSource() = default;
  virtual std::int64_t rows() const = 0;
  // Length to which this row is padded: one of few, so that few shapes occur. At least 1.
  virtual int padded_length(std::int64_t row) const = 0;
  // All values that padded_length() returns, ascending.
  virtual std::vector<int> padded_lengths() const = 0;
  // Positions used, and those with a target, without reading more than needed.
  virtual std::int64_t tokens(std::int64_t row) const = 0;
  virtual std::int64_t targets(std::int64_t row) const = 0;
  // Values per row of `features`; 0 for token data.
  virtual int feature_width() const { return 0; }
  // Writes the row into row `to` of a batch whose arrays are sized and hold padding. Doesn't touch
  // its counts.
  virtual void fill(std::int64_t row, MicroBatch& batch, int to) const = 0;

  virtual std::vector<SourceIdentity> identity() const = 0;
  // Memory that the source keeps for the whole run.
  virtual Bytes index_bytes() const = 0;
  // What the user should know, one line each: what was cut, dropped, split.
  virtual std::vector<std::string> notes() const { return {}; }
};

}  // namespace zinf::data
