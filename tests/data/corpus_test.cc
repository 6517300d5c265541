#include "engine/data/corpus.h"

#include "tests/data/data_fixture.h"

namespace zinf::data {
namespace {

using CorpusTest = DataTest;

TEST_F(CorpusTest, FilesFormOneList) {
  const Corpus corpus({counted_file("a", {3, 2}), counted_file("b", {4})}, 60000);
  EXPECT_EQ(corpus.documents(), 3u);
  EXPECT_EQ(corpus.tokens(), 9u);
  EXPECT_EQ(corpus.document(2).length, 4u);
  EXPECT_EQ(corpus.document(2).file->path(), path("b"));
  EXPECT_EQ(corpus.identity()[0].path, path("a"));
  EXPECT_EQ(corpus.identity()[0].bytes, std::filesystem::file_size(path("a")));
  EXPECT_NE(corpus.identity()[0].hash, corpus.identity()[1].hash);
}

TEST_F(CorpusTest, EmptyFileIsRefused) {
  EXPECT_EQ(error_of([&] {
              Corpus({counted_file("a", {0, 0})}, 60000);
            }),
            path("a") + " holds no token");
}

TEST_F(CorpusTest, SplitByDocumentIsExactAndStable) {
  const auto corpus = std::make_shared<Corpus>(
      std::vector<std::string>{counted_file("a", std::vector<int>(50, 3))}, 60000);
  const auto members = [&](CorpusPart part, std::uint64_t seed) {
    std::vector<std::uint64_t> found;
    CorpusView(corpus, part, 0.1, seed)
        .for_each_document([&](std::uint64_t index, Corpus::Document) { found.push_back(index); });
    return found;
  };
  const auto eval = members(CorpusPart::kEval, 1);
  EXPECT_EQ(eval.size(), 5u);
  auto together = members(CorpusPart::kTrain, 1);
  EXPECT_EQ(together.size(), 45u);
  together.insert(together.end(), eval.begin(), eval.end());
  std::sort(together.begin(), together.end());
  for (std::uint64_t i = 0; i < 50; ++i) EXPECT_EQ(together[i], i);
  EXPECT_EQ(members(CorpusPart::kEval, 1), eval);
  EXPECT_NE(members(CorpusPart::kEval, 2), eval);
}

TEST_F(CorpusTest, OneDocumentIsCutByTokens) {
  const auto corpus =
      std::make_shared<Corpus>(std::vector<std::string>{counted_file("a", {40})}, 60000);
  const auto train = CorpusView(corpus, CorpusPart::kTrain, 0.1).document(0);
  const auto eval = CorpusView(corpus, CorpusPart::kEval, 0.1).document(0);
  EXPECT_EQ(train.begin, 0u);
  EXPECT_EQ(train.length, 36u);
  EXPECT_EQ(eval.begin, 36u);
  EXPECT_EQ(eval.length, 4u);
}

}  // namespace
}  // namespace zinf::data
