#include "engine/data/token_rows.h"

#include "engine/data/loader.h"
#include "tests/data/data_fixture.h"

namespace zinf::data {
namespace {

class TokenRowsTest : public DataTest {
 protected:
  CorpusView view(const std::string& file) const {
    return CorpusView(std::make_shared<Corpus>(std::vector<std::string>{file}, 60000));
  }
  static MicroBatch all_rows(std::shared_ptr<const RowSource> rows) {
    LoaderOptions options;
    options.micro_batch = static_cast<int>(rows->rows());
    options.shuffle = false;
    return Loader(rows, options).step_batch(0).micro_batches.at(0);
  }
};

using Ints = std::vector<std::int32_t>;
constexpr std::int32_t kNo = kIgnore;

TEST_F(TokenRowsTest, PackedRowsKeepDocumentsApart) {
  // Document 0 is split (full part, rest of 3); 1 and the rest share a row; 2 has one token and no
  // target.
  const auto rows = std::make_shared<PackedTokenRows>(view(counted_file("a", {11, 4, 1, 0, 2})), 8);
  EXPECT_EQ(rows->notes(),
            (std::vector<std::string>{"1 documents are longer than seq_len 8 and were split",
                                      "2 documents have no token to train on and are left out"}));
  const MicroBatch batch = all_rows(rows);
  EXPECT_EQ(batch.rows, 3);
  EXPECT_EQ(batch.ids, (Ints{0,   1,   2,  3,   4,   5,   6,   7,  //
                             8,   9,   10, 100, 101, 102, 103, 0,  //
                             400, 401, 0,  0,   0,   0,   0,   0}));
  EXPECT_EQ(batch.targets, (Ints{1,   2,   3,   4,   5,   6,   7,   8,    //
                                 9,   10,  kNo, 101, 102, 103, kNo, kNo,  //
                                 401, kNo, kNo, kNo, kNo, kNo, kNo, kNo}));
  EXPECT_EQ(batch.positions, (Ints{0, 1, 2, 3, 4, 5, 6, 7,  //
                                   0, 1, 2, 0, 1, 2, 3, 0,  //
                                   0, 1, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(batch.documents, (Ints{0, 0, 0,  0,  0,  0,  0,  0,   //
                                   0, 0, 0,  1,  1,  1,  1,  -1,  //
                                   0, 0, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(batch.tokens, 17);
  EXPECT_EQ(batch.target_tokens, 14);  // every token of a document but the first, once: 10 + 3 + 1
}

TEST_F(TokenRowsTest, FullPartAtTheDocumentEndPredictsNothingBeyond) {
  const auto rows = std::make_shared<PackedTokenRows>(view(counted_file("a", {8, 9})), 4);
  const MicroBatch batch = all_rows(rows);
  // 8 tokens are two full parts; of 9 the last token is a target only.
  EXPECT_EQ(batch.rows, 4);
  EXPECT_EQ(batch.targets,
            (Ints{1, 2, 3, 4, 5, 6, 7, kNo, 101, 102, 103, 104, 105, 106, 107, 108}));
  EXPECT_EQ(rows->targets(1), 3);
  EXPECT_EQ(rows->targets(3), 4);
}

// BR-062
TEST_F(TokenRowsTest, TokensAndMaskAreCutTogether) {
  const auto rows = std::make_shared<DocumentRows>(view(counted_file("a", {12, 8})), 8);
  EXPECT_EQ(
      rows->notes(),
      (std::vector<std::string>{
          "1 rows are longer than seq_len 8 and were cut: 4 of 20 tokens are not trained on"}));
  const MicroBatch batch = all_rows(rows);
  EXPECT_EQ(batch.ids, (Ints{0, 1, 2, 3, 4, 5, 6, 7, 100, 101, 102, 103, 104, 105, 106, 107}));
  EXPECT_EQ(batch.targets,
            (Ints{1, 2, 3, 4, 5, 6, 7, kNo, 101, 102, 103, 104, 105, 106, 107, kNo}));
}

TEST_F(TokenRowsTest, PromptsAreNoTargets) {
  TokenWriter writer(path("m"), 100);
  writer.add(Ints{1, 2, 3, 4, 5}, std::vector<std::uint8_t>{0, 0, 1, 1, 0});
  writer.add(Ints{6, 7, 8},
             std::vector<std::uint8_t>{1, 0, 0});  // its only trained token has no context
  writer.add(Ints{9, 10, 11, 12, 13}, std::vector<std::uint8_t>{0, 0, 0, 0, 1});
  writer.finish();
  const auto rows = std::make_shared<DocumentRows>(view(path("m")), 4);
  EXPECT_EQ(rows->rows(), 1);
  EXPECT_EQ(rows->notes()[1], "2 rows have no token to train on within seq_len 4 and are left out");
  EXPECT_EQ(all_rows(rows).targets, (Ints{kNo, 3, 4, kNo}));
  EXPECT_EQ(rows->targets(0), 2);
  const auto packed = std::make_shared<PackedTokenRows>(view(path("m")), 4);
  // Document 0's full part [1 2 3 4] trains 3 and 4; its rest [5] nothing. Document 2's full part
  // trains 13.
  EXPECT_EQ(all_rows(packed).targets, (Ints{kNo, 3, 4, kNo, kNo, kNo, kNo, 13}));
}

TEST_F(TokenRowsTest, LengthsAreRoundedToFewClasses) {
  const auto rows =
      std::make_shared<DocumentRows>(view(counted_file("a", {2, 16, 17, 30, 64, 100, 33})), 64);
  EXPECT_EQ(rows->padded_lengths(), (std::vector<int>{8, 16, 24, 32, 40, 64}));
  EXPECT_EQ(rows->padded_length(2), 24);
  EXPECT_EQ(rows->padded_length(5), 64);
  EXPECT_EQ(rows->index_bytes(), 7u * 5);
}

TEST_F(TokenRowsTest, NoTargetAtAllIsRefused) {
  TokenWriter writer(path("m"), 100);
  writer.add(Ints{1, 2, 3}, std::vector<std::uint8_t>{0, 0, 0});
  writer.finish();
  const auto rows = std::make_shared<PackedTokenRows>(view(path("m")), 4);
  const std::string error = error_of([&] { Loader(rows, {}); });
  EXPECT_EQ(error.find("the data has no row to train on (" + path("m") + ")"), 0u) << error;
  EXPECT_NE(error.find("hint: a row takes at least two tokens"), std::string::npos) << error;
}

}  // namespace
}  // namespace zinf::data
