// Model specs of a few thousand parameters and batches for them, for tests with the fake compute.
#pragma once

#include "engine/base/random.h"
#include "engine/base/str.h"
#include "engine/data/batch.h"
#include "engine/model/model_spec.h"

namespace zinf::testing {

struct SmallModel {
  int layers = 3;
  std::int64_t width = 24;
  std::int64_t layer_elements = 9000;
  std::int64_t vocabulary = 700;
  bool tied = true;
  model::DType type = model::DType::kBFloat16;
};

inline model::TensorSpec tensor(const std::string& name, std::vector<std::int64_t> shape,
                                bool norm_or_bias) {
  model::TensorSpec spec;
  spec.name = name;
  spec.shape = std::move(shape);
  spec.norm_or_bias = norm_or_bias;
  spec.init_std = 0.5;
  return spec;
}

inline model::ModelSpec small_spec(const SmallModel& small) {
  model::ModelSpec spec;
  spec.family = "small";
  spec.compute_type = small.type;
  spec.vocabulary = small.vocabulary;
  const auto piece = [&](const std::string& name, std::vector<model::TensorSpec> tensors,
                         bool table) {
    model::PieceSpec made;
    made.name = name;
    made.tensors = std::move(tensors);
    made.table = table;
    lay_out(made);
    spec.pieces.push_back(std::move(made));
    return static_cast<int>(spec.pieces.size()) - 1;
  };
  const int table =
      piece("table", {tensor("table.weight", {small.vocabulary, small.width}, false)}, true);
  spec.activations.push_back({"rows", small.width});
  model::StageSpec lookup;
  lookup.name = "lookup";
  lookup.kind = model::StageKind::kLookup;
  lookup.pieces = {table};
  lookup.outputs = {0};
  spec.stages.push_back(lookup);
  for (int l = 0; l < small.layers; ++l) {
    model::StageSpec block;
    block.name = str("layer", l);
    block.pieces = {piece(str("layer", l),
                          {tensor(str("l", l, ".weight"), {small.layer_elements + 100 * l}, false),
                           tensor(str("l", l, ".bias"), {37}, true)},
                          false)};
    block.inputs = {l};
    block.outputs = {l + 1};
    spec.activations.push_back({str("hidden", l), small.width});
    spec.stages.push_back(block);
  }
  model::StageSpec head;
  head.name = "head";
  head.kind = model::StageKind::kHead;
  head.pieces = {piece("norm", {tensor("norm.weight", {small.width}, true)}, false)};
  head.pieces.push_back(
      small.tied ? table
                 : piece("lm_head", {tensor("head.weight", {small.vocabulary, small.width}, false)},
                         false));
  head.table = 1;
  head.inputs = {small.layers};
  spec.stages.push_back(head);
  return spec;
}

inline data::StepBatch small_batch(std::uint64_t seed, int micro_batches, int rows, int length,
                                   std::int64_t vocabulary) {
  data::StepBatch batch;
  for (int m = 0; m < micro_batches; ++m) {
    data::MicroBatch micro;
    micro.rows = rows;
    micro.length = length;
    for (int i = 0; i < rows * length; ++i) {
      const std::uint64_t key = random_key(seed, static_cast<std::uint64_t>(m));
      micro.ids.push_back(static_cast<std::int32_t>(random_below(
          key, static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(vocabulary))));
      micro.targets.push_back(micro.ids.back());
      micro.positions.push_back(i % length);
      micro.documents.push_back(0);
    }
    micro.tokens = micro.target_tokens = rows * length;
    batch.tokens += micro.tokens;
    batch.target_tokens += micro.target_tokens;
    batch.micro_batches.push_back(std::move(micro));
  }
  return batch;
}

}  // namespace zinf::testing
