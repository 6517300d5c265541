#include "engine/data/random_rows.h"

#include <cmath>

#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "engine/base/random.h"
#include "engine/base/str.h"

namespace zinf::data {
namespace {

// What a random stream is for.
constexpr std::uint64_t kTokens = 0x746f6b;
constexpr std::uint64_t kFeatures = 0x66656174;
constexpr std::uint64_t kTeacher = 0x74656163;

class RandomRows : public RowSource {
 public:
  RandomRows(std::int64_t samples, std::string description) : samples_(samples) {
    ZINF_CHECK(samples == kEndless || samples > 0, str("samples ", samples));
    Hasher hasher;
    hasher.update(description.data(), description.size());
    identity_ = {"random", 0, hasher.hex()};
  }
  std::int64_t rows() const override { return samples_; }
  std::vector<SourceIdentity> identity() const override { return {identity_}; }

 private:
  std::int64_t samples_;
  SourceIdentity identity_;
};

class RandomTokens : public RandomRows {
 public:
  RandomTokens(std::int64_t samples, int seq_len, std::uint64_t vocabulary, std::uint64_t seed)
      : RandomRows(samples, str("tokens ", samples, " ", seq_len, " ", vocabulary, " ", seed)),
        seq_len_(seq_len),
        vocabulary_(vocabulary),
        seed_(seed) {}
  int padded_length(std::int64_t) const override { return seq_len_; }
  std::vector<int> padded_lengths() const override { return {seq_len_}; }
  std::int64_t tokens(std::int64_t) const override { return seq_len_; }
  std::int64_t targets(std::int64_t) const override { return seq_len_; }
  void fill(std::int64_t row, MicroBatch& batch, int to) const override {
    const std::uint64_t key = random_key(seed_, kTokens, row);
    const std::size_t base = static_cast<std::size_t>(to) * batch.length;
    for (int i = 0; i < seq_len_; ++i) {
      batch.ids[base + i] = static_cast<std::int32_t>(random_below(key, i, vocabulary_));
      batch.targets[base + i] = static_cast<std::int32_t>(random_below(key, i + 1, vocabulary_));
      batch.positions[base + i] = i;
      batch.documents[base + i] = 0;
    }
  }
  Bytes index_bytes() const override { return 0; }

 private:
  int seq_len_;
  std::uint64_t vocabulary_;
  std::uint64_t seed_;
};

class RandomRegression : public RandomRows {
 public:
  RandomRegression(std::int64_t samples, int width, std::uint64_t seed)
      : RandomRows(samples, str("regression ", samples, " ", width, " ", seed)),
        seed_(seed),
        teacher_(width) {
    const std::uint64_t key = random_key(seed, kTeacher);
    for (int i = 0; i < width; ++i)
      teacher_[i] = static_cast<float>(random_normal(key, i) / std::sqrt(width));
  }
  int padded_length(std::int64_t) const override { return 1; }
  std::vector<int> padded_lengths() const override { return {1}; }
  std::int64_t tokens(std::int64_t) const override { return 1; }
  std::int64_t targets(std::int64_t) const override { return 1; }
  int feature_width() const override { return static_cast<int>(teacher_.size()); }
  void fill(std::int64_t row, MicroBatch& batch, int to) const override {
    const std::uint64_t key = random_key(seed_, kFeatures, row);
    float* features = batch.features.data() + static_cast<std::size_t>(to) * teacher_.size();
    double label = 0;
    for (std::size_t i = 0; i < teacher_.size(); ++i) {
      features[i] = static_cast<float>(random_normal(key, i));
      label += static_cast<double>(features[i]) * teacher_[i];
    }
    batch.labels[to] = static_cast<float>(label);
    batch.targets[to] = 0;
  }
  Bytes index_bytes() const override { return teacher_.size() * sizeof(float); }

 private:
  std::uint64_t seed_;
  std::vector<float> teacher_;
};

}  // namespace

std::unique_ptr<RowSource> random_tokens(std::int64_t samples, int seq_len,
                                         std::uint64_t vocabulary, std::uint64_t seed) {
  ZINF_CHECK(seq_len > 0 && vocabulary > 0 && vocabulary < std::uint64_t{1} << 31,
             str("vocabulary ", vocabulary));
  return std::make_unique<RandomTokens>(samples, seq_len, vocabulary, seed);
}

std::unique_ptr<RowSource> random_regression(std::int64_t samples, int width, std::uint64_t seed) {
  ZINF_CHECK(width > 0, str("width ", width));
  return std::make_unique<RandomRegression>(samples, width, seed);
}

}  // namespace zinf::data
