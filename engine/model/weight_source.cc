#include "engine/model/weight_source.h"

#include <algorithm>
#include <functional>

#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "engine/base/random.h"
#include "engine/base/str.h"

namespace zinf::model {
namespace {

// What the random numbers of initial weights are for; keeps their streams apart from all others of
// a seed.
constexpr std::uint64_t kInitPurpose = 0x696e6974'77656967ull;

// Calls `part` for the share of [first, first + count) in each tensor, as (tensor, first element in
// it, count, where it belongs in `master`), after zeroing what no tensor covers.
void for_each_part(
    const PieceSpec& piece, std::int64_t first, std::int64_t count, float* master,
    const std::function<void(const TensorSpec&, std::int64_t, std::int64_t, float*)>& part) {
  ZINF_CHECK(first >= 0 && count >= 0 && count <= piece.elements - first,
             str("range outside piece ", piece.name));
  const std::int64_t end = first + count;
  std::int64_t reached = first;
  for (const TensorSpec& tensor : piece.tensors) {
    const std::int64_t from = std::max(first, tensor.offset);
    const std::int64_t to = std::min(end, tensor.offset + tensor.elements);
    if (from >= to) continue;
    std::fill(master + (reached - first), master + (from - first), 0.0f);
    part(tensor, from - tensor.offset, to - from, master + (from - first));
    reached = to;
  }
  std::fill(master + (reached - first), master + count, 0.0f);
}

class FolderWeights : public WeightSource {
 public:
  FolderWeights(const HfFolder& folder, TensorMap map) : folder_(folder), map_(std::move(map)) {}

  void read_piece(const PieceSpec& piece, std::int64_t first, std::int64_t count,
                  float* master) const override {
    for_each_part(piece, first, count, master,
                  [this](const TensorSpec& tensor, std::int64_t from, std::int64_t n, float* into) {
                    folder_.read_fp32(map_.folder_name.at(tensor.name), from, n, into);
                  });
  }

 private:
  const HfFolder& folder_;
  TensorMap map_;
};

class RandomWeights : public WeightSource {
 public:
  explicit RandomWeights(std::uint64_t seed) : seed_(seed) {}

  void read_piece(const PieceSpec& piece, std::int64_t first, std::int64_t count,
                  float* master) const override {
    for_each_part(piece, first, count, master,
                  [this](const TensorSpec& tensor, std::int64_t from, std::int64_t n, float* into) {
                    fill(tensor, from, n, into);
                  });
  }

 private:
  void fill(const TensorSpec& tensor, std::int64_t from, std::int64_t n, float* into) const {
    if (tensor.init_std == 0) {
      std::fill(into, into + n, static_cast<float>(tensor.init_value));
      return;
    }
    const std::uint64_t key =
        random_key(kInitPurpose, seed_, xxh3_64(tensor.name.data(), tensor.name.size()));
    for (std::int64_t i = 0; i < n; ++i) {
      into[i] = static_cast<float>(tensor.init_std *
                                   random_normal(key, static_cast<std::uint64_t>(from + i)));
    }
  }

  std::uint64_t seed_;
};

}  // namespace

std::unique_ptr<WeightSource> folder_weights(const HfFolder& folder, TensorMap map) {
  return std::make_unique<FolderWeights>(folder, std::move(map));
}

std::unique_ptr<WeightSource> random_weights(std::uint64_t seed) {
  return std::make_unique<RandomWeights>(seed);
}

}  // namespace zinf::model
