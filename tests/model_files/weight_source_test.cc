#include "engine/model/weight_source.h"

#include <cmath>

#include "engine/base/hash.h"
#include "tests/model_files/model_files_fixture.h"

namespace zinf::model {
namespace {

// A table, a layer of two tensors, and a head unless tied.
ModelSpec small_spec(bool tied) {
  ModelSpec spec;
  spec.family = "llama";
  spec.pieces.push_back(spec_piece("table", {spec_tensor("embed.weight", {64, 16})}));
  spec.pieces.push_back(
      spec_piece("layer", {spec_tensor("norm.weight", {16}), spec_tensor("q.weight", {16, 16})}));
  if (!tied) spec.pieces.push_back(spec_piece("head", {spec_tensor("lm_head.weight", {64, 16})}));
  return spec;
}

class WeightSourceTest : public ModelFilesTest {
 protected:
  std::vector<Given> body() const {
    return {given_fp32("norm.weight", {16}, counted(16, 2)),
            given_bf16("q.weight", {16, 16}, counted(256, 3))};
  }
  HfFolder folder_of(std::vector<Given> tensors) {
    write("config.json", "{}");
    write_safetensors(path("model.safetensors"), tensors);
    return HfFolder::open(folder_.string());
  }
  // body, embedding and head as asked for.
  HfFolder folder_with(bool embedding, const std::vector<float>* head) {
    std::vector<Given> tensors = body();
    if (embedding) tensors.push_back(given_fp32("embed.weight", {64, 16}, counted(1024, 1)));
    if (head != nullptr) tensors.push_back(given_bf16("lm_head.weight", {64, 16}, *head));
    return folder_of(tensors);
  }
  const TensorRules tied_ = {{{"embed.weight", "lm_head.weight"}}, {}, false};
};

TEST_F(WeightSourceTest, TiedAndUntiedHeads) {
  const std::vector<float> same = counted(1024, 1);
  std::vector<float> other = same;
  other[1000] += 1;
  EXPECT_EQ(check_tensors(small_spec(true), folder_with(true, nullptr), tied_)
                .folder_name.at("embed.weight"),
            "embed.weight");
  EXPECT_TRUE(check_tensors(small_spec(true), folder_with(true, &same), tied_).carried.empty());
  const std::string different =
      error_of([&] { check_tensors(small_spec(true), folder_with(true, &other), tied_); });
  expect_has(different,
             "config.json ties \"lm_head.weight\" to \"embed.weight\", but their values differ: "
             "element 1000");
  expect_has(different, "tie_word_embeddings");
  check_tensors(small_spec(false), folder_with(true, &other), {});
  const std::string missing =
      error_of([&] { check_tensors(small_spec(false), folder_with(true, nullptr), {}); });
  expect_has(missing, "lacks 1 of the 4 tensors that config.json asks for: lm_head.weight");
  expect_has(missing, "\"tie_word_embeddings\": true");
  // Saved under the head's name only.
  EXPECT_EQ(check_tensors(small_spec(true), folder_with(false, &same), tied_)
                .folder_name.at("embed.weight"),
            "lm_head.weight");
}

TEST_F(WeightSourceTest, FoldersOfTheBareModelLackThePrefix) {
  ModelSpec spec = small_spec(true);
  for (PieceSpec& piece : spec.pieces) {
    for (TensorSpec& tensor : piece.tensors) tensor.name = "transformer." + tensor.name;
  }
  TensorRules rules = tied_;
  rules.tied[0].name = "transformer.embed.weight";
  rules.optional_prefix = "transformer.";
  const std::vector<float> same = counted(1024, 1);
  const TensorMap map = check_tensors(spec, folder_with(true, &same), rules);
  EXPECT_EQ(map.folder_name.at("transformer.q.weight"), "q.weight");
  EXPECT_EQ(map.dropped_prefix, "transformer.");
  EXPECT_TRUE(map.carried.empty());
  expect_has(error_of([&] { check_tensors(spec, folder_with(false, nullptr), rules); }),
             "lacks 1 of the 3 tensors that config.json asks for: embed.weight");
  std::vector<Given> mixed = body();
  mixed.push_back(given_fp32("transformer.embed.weight", {64, 16}, counted(1024, 1)));
  expect_has(error_of([&] { check_tensors(spec, folder_of(mixed), rules); }),
             "transformer.norm.weight, transformer.q.weight");
}

TEST_F(WeightSourceTest, ATiedHeadOfAnotherShapeIsRefused) {
  std::vector<Given> tensors = body();
  tensors.push_back(given_fp32("embed.weight", {64, 16}, counted(1024, 1)));
  tensors.push_back(given_fp32("lm_head.weight", {16, 64}, counted(1024, 1)));
  const HfFolder folder = folder_of(tensors);
  expect_has(error_of([&] { check_tensors(small_spec(true), folder, tied_); }),
             "but they are F32 [16, 64] and F32 [64, 16]");
}

TEST_F(WeightSourceTest, NamesEveryDisagreement) {
  std::vector<Given> tensors = body();
  tensors.push_back(given_fp32("embed.weight", {63, 16}, counted(1008, 1)));
  HfFolder wrong_shape = folder_of(tensors);
  expect_has(error_of([&] { check_tensors(small_spec(true), wrong_shape, {}); }),
             "tensor \"embed.weight\" has shape [63, 16]; config.json makes it [64, 16]");
  tensors.back() = {"embed.weight", SafeType::kU8, {64, 16}, std::string(1024, 'x')};
  HfFolder wrong_type = folder_of(tensors);
  expect_has(error_of([&] { check_tensors(small_spec(true), wrong_type, {}); }),
             "tensor \"embed.weight\" has type U8");
  HfFolder empty = folder_of({});
  expect_has(
      error_of([&] { check_tensors(small_spec(true), empty, {}); }),
      "lacks 3 of the 3 tensors that config.json asks for: embed.weight, norm.weight, q.weight");
}

TEST_F(WeightSourceTest, UnknownTensorsAreAnErrorUnlessAllowed) {
  std::vector<Given> tensors = body();
  tensors.push_back(given_fp32("embed.weight", {64, 16}, counted(1024, 1)));
  tensors.push_back(given_fp32("q.bias", {16}, counted(16, 5)));
  tensors.push_back({"rotary.inv_freq", SafeType::kF32, {2}, std::string(8, 'x')});
  const HfFolder folder = folder_of(tensors);
  TensorRules rules;
  rules.buffers = {"*.inv_freq"};
  const std::string text = error_of([&] { check_tensors(small_spec(true), folder, rules); });
  expect_has(text, "holds 1 tensors that family llama does not know: q.bias");
  rules.allow_unknown = true;
  EXPECT_EQ(check_tensors(small_spec(true), folder, rules).carried,
            (std::vector<std::string>{"q.bias", "rotary.inv_freq"}));
}

TEST_F(WeightSourceTest, ReadsAnyRangeWithZeroesBetweenTensors) {
  const HfFolder folder = folder_with(true, nullptr);
  const ModelSpec spec = small_spec(true);
  const auto source = folder_weights(folder, check_tensors(spec, folder, {}));
  const PieceSpec& layer = spec.pieces[1];
  std::vector<float> whole(layer.elements, 7);
  source->read_piece(layer, 0, layer.elements, whole.data());
  const std::vector<float> norm = counted(16, 2), q = counted(256, 3);
  for (std::int64_t i = 0; i < layer.elements; ++i) {
    const float expected = i < 16 ? norm[i] : i >= 256 && i < 512 ? q[i - 256] : 0;
    ASSERT_EQ(whole[i], expected) << i;
  }
  for (const auto& [first, count] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {0, 0}, {5, 20}, {17, 3}, {200, 57}, {511, 2}, {4095, 1}, {300, 3796}}) {
    std::vector<float> part(count, 7);
    source->read_piece(layer, first, count, part.data());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first)) << first;
  }
}

TEST(RandomWeights, DoNotDependOnRanges) {
  ModelSpec spec = small_spec(true);
  for (PieceSpec& piece : spec.pieces) {
    for (TensorSpec& tensor : piece.tensors) tensor.init_std = 0.02;
  }
  const auto source = random_weights(7);
  std::vector<float> table(1024), part(10);
  source->read_piece(spec.pieces[0], 0, 1024, table.data());
  source->read_piece(spec.pieces[0], 700, 10, part.data());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), table.begin() + 700));
  std::vector<float> other(1024);
  random_weights(8)->read_piece(spec.pieces[0], 0, 1024, other.data());
  EXPECT_NE(other, table);
}

TEST(RandomWeights, GoldenValuesAndMoments) {
  TensorSpec tensor = spec_tensor("w", {1000, 100});
  tensor.init_std = 0.5;
  TensorSpec ones = spec_tensor("norm", {10});
  ones.init_value = 1;
  const PieceSpec piece = spec_piece("p", {tensor, ones});
  std::vector<float> values(piece.elements);
  random_weights(1)->read_piece(piece, 0, piece.elements, values.data());
  double sum = 0, squares = 0;
  for (int i = 0; i < 100'000; ++i) {
    sum += values[i];
    squares += values[i] * values[i];
  }
  EXPECT_NEAR(sum / 1e5, 0, 0.01);
  EXPECT_NEAR(std::sqrt(squares / 1e5), 0.5, 0.01);
  EXPECT_EQ(values[piece.tensors[1].offset + 9], 1);
  EXPECT_EQ(values[piece.tensors[1].offset + 10], 0);
  EXPECT_FLOAT_EQ(values[0], -0.037302066f);
  EXPECT_FLOAT_EQ(values[1], -1.348901222f);
  EXPECT_FLOAT_EQ(values[99'999], 0.183633016f);
}

}  // namespace
}  // namespace zinf::model
