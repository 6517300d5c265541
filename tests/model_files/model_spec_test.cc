#include "engine/model/model_spec.h"

#include "tests/model_files/model_files_fixture.h"

namespace zinf::model {
namespace {

// Two layers and a tied table that two stages use.
ModelSpec two_layers() {
  ModelSpec spec;
  spec.family = "llama";
  spec.pieces.push_back(spec_piece("table", {spec_tensor("embed.weight", {64, 16})}));
  spec.pieces[0].table = true;
  for (const char* layer : {"0", "1"}) {
    const std::string prefix = std::string("layers.") + layer + ".";
    spec.pieces.push_back(spec_piece(
        "layer " + std::string(layer),
        {spec_tensor(prefix + "norm.weight", {16}), spec_tensor(prefix + "q.weight", {16, 16}),
         spec_tensor(prefix + "up.weight", {40, 16})}));
  }
  const std::vector<std::vector<int>> pieces = {{0}, {1}, {2}, {0}};
  for (const std::vector<int>& list : pieces) {
    StageSpec stage;
    stage.pieces = list;
    spec.stages.push_back(stage);
  }
  return spec;
}

TEST(LayOut, StartsEveryTensorAtAQuantumAndPadsThePieceToATile) {
  const PieceSpec piece = spec_piece(
      "p", {spec_tensor("a", {3}), spec_tensor("b", {256}), spec_tensor("c", {5, 1000})});
  EXPECT_EQ(piece.tensors[0].offset, 0);
  EXPECT_EQ(piece.tensors[1].offset, 256);
  EXPECT_EQ(piece.tensors[2].offset, 512);
  EXPECT_EQ(piece.tensors[2].elements, 5000);
  EXPECT_EQ(piece.parameters, 3 + 256 + 5000);
  EXPECT_EQ(piece.elements, 8192);
}

TEST(LayOut, RefusesSizesThatNoModelHas) {
  const std::int64_t big = std::int64_t{1} << 40;
  expect_has(error_of([&] {
               spec_piece("p", {spec_tensor("t", {big, big})});
             }),
             "tensor t of shape [1099511627776, 1099511627776]");
  expect_has(error_of([&] {
               spec_piece("p", {spec_tensor("t", {4, 0})});
             }),
             "tensor t of shape [4, 0]");
  expect_has(error_of([&] { spec_piece("p", {spec_tensor("t", {-4, -4})}); }), "at least 1");
  const std::int64_t most = kMostElements;
  expect_has(error_of([&] {
               spec_piece("p", {spec_tensor("t", {most}), spec_tensor("u", {1})});
             }),
             "piece p would hold more");
}

TEST(GlobMatch, StarAndQuestionMark) {
  EXPECT_TRUE(glob_match("layers.*.norm.weight", "layers.11.norm.weight"));
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("**a*", "bca"));
  EXPECT_TRUE(glob_match("a?c", "abc"));
  EXPECT_TRUE(glob_match("*.q.*", "x.q.q.weight"));
  EXPECT_FALSE(glob_match("layers.?.q", "layers.11.q"));
  EXPECT_FALSE(glob_match("layers.1", "layers.11"));
  EXPECT_FALSE(glob_match("a?", "a"));
  EXPECT_FALSE(glob_match("a.c", "abc"));
  EXPECT_FALSE(glob_match("", "a"));
}

TEST(GlobMatch, TakesNoExponentialTime) {
  const std::string name(2000, 'a');
  EXPECT_FALSE(glob_match("*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b", name));
}

TEST(ApplyFreeze, SplitsALayerInATrainableAndAFrozenPiece) {
  ModelSpec spec = two_layers();
  const std::int64_t parameters = spec.parameters();
  apply_freeze(spec, {"layers.1.q.*"});
  ASSERT_EQ(spec.pieces.size(), 4u);
  EXPECT_EQ(spec.pieces[2].name, "layer 1");
  EXPECT_TRUE(spec.pieces[2].trainable);
  EXPECT_EQ(spec.pieces[3].name, "layer 1.frozen");
  EXPECT_FALSE(spec.pieces[3].trainable);
  ASSERT_EQ(spec.pieces[2].tensors.size(), 2u);
  EXPECT_EQ(spec.pieces[2].tensors[0].name, "layers.1.norm.weight");
  EXPECT_EQ(spec.pieces[2].tensors[1].name, "layers.1.up.weight");
  EXPECT_EQ(spec.pieces[2].tensors[1].offset, 256);
  EXPECT_EQ(spec.pieces[3].tensors[0].offset, 0);
  EXPECT_EQ(spec.pieces[3].parameters, 256);
  EXPECT_EQ(spec.parameters(), parameters);
  EXPECT_EQ(spec.stages[2].pieces, (std::vector<int>{2, 3}));
  EXPECT_EQ(spec.stages[3].pieces, (std::vector<int>{0}));
  const TensorPlace place = find_tensor(spec, spec.stages[2], "layers.1.q.weight");
  EXPECT_EQ(place.operand, 1);
  EXPECT_EQ(place.tensor, &spec.pieces[3].tensors[0]);
  EXPECT_EQ(find_tensor(spec, spec.stages[2], "embed.weight").tensor, nullptr);
}

TEST(ApplyFreeze, WholePiecesKeepTheirNameAndPlaceInEveryStage) {
  ModelSpec spec = two_layers();
  apply_freeze(spec, {"layers.0.*", "embed.weight"});
  ASSERT_EQ(spec.pieces.size(), 3u);
  EXPECT_FALSE(spec.pieces[0].trainable);
  EXPECT_TRUE(spec.pieces[0].table);
  EXPECT_FALSE(spec.pieces[1].trainable);
  EXPECT_EQ(spec.pieces[1].name, "layer 0");
  EXPECT_TRUE(spec.pieces[2].trainable);
  EXPECT_EQ(spec.stages[0].pieces, spec.stages[3].pieces);
}

TEST(ApplyFreeze, LaterPiecesAreRenumbered) {
  ModelSpec spec = two_layers();
  apply_freeze(spec, {"layers.0.norm*"});
  EXPECT_EQ(spec.stages[1].pieces, (std::vector<int>{1, 2}));
  EXPECT_EQ(spec.stages[2].pieces, (std::vector<int>{3}));
}

TEST(ApplyFreeze, NamesThePatternThatMatchesNothing) {
  ModelSpec spec = two_layers();
  const std::string text = error_of([&] { apply_freeze(spec, {"layers.*", "layer.0.*"}); });
  expect_has(text, "\"layer.0.*\" matches none of the model's 7 tensors");
  expect_has(text, "layers.0.norm.weight");
}

TEST(ApplyFreeze, RefusesToLeaveNothing) {
  ModelSpec spec = two_layers();
  expect_has(error_of([&] { apply_freeze(spec, {"*"}); }), "nothing is left to train");
  spec.pieces[0].trainable = false;
  expect_has(error_of([&] { apply_freeze(spec, {"layers.*"}); }), "nothing is left to train");
}

TEST(ApplyFreeze, LeavesFrozenPiecesFrozen) {
  ModelSpec spec = two_layers();
  spec.pieces[1].trainable = false;
  apply_freeze(spec, {"layers.0.q.*"});
  ASSERT_EQ(spec.pieces.size(), 3u);
  EXPECT_FALSE(spec.pieces[1].trainable);
  EXPECT_EQ(spec.pieces[1].tensors.size(), 3u);
}

}  // namespace
}  // namespace zinf::model
