#include "engine/data/open_data.h"

#include "tests/data/data_fixture.h"

namespace zinf::data {
namespace {

class OpenDataTest : public DataTest {
 protected:
  DataRequest tokens(const std::vector<std::string>& train) const {
    DataRequest request;
    request.data.train = train;
    request.vocabulary = 60000;
    request.seq_len = 8;
    request.seed = 1;
    return request;
  }
};

TEST_F(OpenDataTest, TokenFilesByPatternWithEvalSplit) {
  counted_file("a1.tokens", std::vector<int>(6, 5));
  counted_file("a2.tokens", std::vector<int>(4, 5));
  DataRequest request = tokens({path("a*.tokens")});
  request.data.packing = false;
  request.data.eval_fraction = 0.2;
  const DataSet set = open_data(request);
  EXPECT_EQ(set.train->source().rows(), 8);
  EXPECT_EQ(set.eval->source().rows(), 2);
  EXPECT_EQ(set.identity.size(), 2u);
  EXPECT_EQ(set.notes, (std::vector<std::string>{"10 documents, 50 tokens"}));
  EXPECT_EQ(set.index_bytes, 10u * 5);
}

TEST_F(OpenDataTest, EvalFileIsReadInOrder) {
  counted_file("a.tokens", {9, 9});
  counted_file("e.tokens", {8, 8, 8});
  DataRequest request = tokens({path("a.tokens")});
  request.data.eval = {path("e.tokens")};
  const DataSet set = open_data(request);
  EXPECT_EQ(set.eval->steps_per_epoch(), 3);
  EXPECT_EQ(set.eval->step_batch(1).micro_batches.at(0).ids[0], 100);
}

TEST_F(OpenDataTest, MistakesAreNamed) {
  EXPECT_EQ(error_of([&] { open_data(tokens({})); }),
            "data.train names no file\n  hint: data.format: random makes data up");
  EXPECT_EQ(error_of([&] { open_data(tokens({path("*.tokens")})); }),
            "no file matches " + path("*.tokens"));
  EXPECT_EQ(error_of([&] { open_data(tokens({path("x.tokens")})); }),
            path("x.tokens") + " does not exist");
  write_text("t.csv", "a,b\n1,2\n");
  counted_file("a.tokens", {9});
  EXPECT_EQ(error_of([&] { open_data(tokens({path("t.csv")})); }),
            path("t.csv") + " is a table of numbers, but the model reads text");
  EXPECT_EQ(error_of([&] {
              open_data(tokens({path("t.csv"), path("a.tokens")}));
            }),
            path("t.csv") + " and " + path("a.tokens") +
                " are of different kinds\n  hint: set data.format");
  DataRequest request = tokens({path("a.tokens")});
  request.vocabulary = 5;
  EXPECT_NE(
      error_of([&] { open_data(request); }).find("token 5 has id 5, outside the vocabulary of 5"),
      std::string::npos);
  request.vocabulary = 0;
  EXPECT_EQ(error_of([&] { open_data(request); }),
            path("a.tokens") + " holds text, but the model is for tables of numbers");
  request.data.train = {path("t.csv")};
  request.feature_width = 3;
  EXPECT_EQ(error_of([&] { open_data(request); }),
            path("t.csv") +
                " has 1 features and a target, but the model takes 3 features\n  hint: set "
                "model.width: 1");
}

TEST_F(OpenDataTest, BareFilesTakeTheGivenWidth) {
  write_vector<std::uint16_t>("train.bin", std::vector<std::uint16_t>(20, 7));
  DataRequest request = tokens({path("train.bin")});
  request.token_width = 16;
  request.micro_batch = 3;
  EXPECT_EQ(open_data(request).train->step_batch(0).target_tokens, 19);
}

TEST_F(OpenDataTest, RandomDataNeedsNoFile) {
  DataRequest request = tokens({});
  request.data.format = config::DataFormat::kRandom;
  EXPECT_EQ(open_data(request).train->steps_per_epoch(), 0);
  request.data.samples = 10;
  request.micro_batch = 3;
  EXPECT_EQ(open_data(request).train->steps_per_epoch(), 4);
  request.vocabulary = 0;
  request.feature_width = 4;
  EXPECT_EQ(open_data(request).train->step_batch(0).micro_batches.at(0).features.size(), 12u);
}

}  // namespace
}  // namespace zinf::data
