// Starts the real tool where the Python environment is installed, and stand-ins elsewhere.
#include "engine/data/prepare.h"

#include <unistd.h>

#include "engine/data/token_file.h"
#include "engine/data/tokenizer_tool.h"
#include "tests/data/data_fixture.h"

namespace zinf::data {
namespace {

class PrepareTest : public DataTest {
 protected:
  void SetUp() override {
    DataTest::SetUp();
    std::filesystem::create_directory(path("model"));
    // Words are tokens: a tokenizer that fits on a page.
    write_text("model/tokenizer.json",
               R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
      "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
      "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1, "b": 2, "c": 3}, "unk_token": "[UNK]"}})");
    write_text("a.txt", "a b c a");
    request_.sources = {path("a.txt")};
    request_.model_folder = path("model");
    request_.cache_folder = path("cache");
  }
  // A Python that does what `body` says in shell instead.
  void fake_python(const std::string& body) {
    write_text("python", "#!/bin/sh\n" + body + "\n");
    std::filesystem::permissions(path("python"), std::filesystem::perms::owner_all);
    request_.python = path("python");
  }
  static bool installed() {
    try {
      const PrepareTool tool = find_prepare_tool();
      return ::access(tool.python.c_str(), X_OK) == 0;
    } catch (const Error&) {
      return false;
    }
  }

  PrepareRequest request_;
};

TEST_F(PrepareTest, TextBecomesTokensOnce) {
  if (!installed()) GTEST_SKIP() << "no .venv: run tools/setup.sh";
  const Prepared first = prepare(request_);
  EXPECT_FALSE(first.cached);
  const TokenFile file = TokenFile::open(first.path);
  EXPECT_EQ(file.vocabulary(), 4u);
  std::vector<std::int32_t> ids(file.tokens());
  file.read_tokens(0, ids.size(), ids.data());
  EXPECT_EQ(ids, (std::vector<std::int32_t>{1, 2, 3, 1}));
  const Prepared second = prepare(request_);
  EXPECT_TRUE(second.cached);
  EXPECT_EQ(second.path, first.path);
}

TEST_F(PrepareTest, PromptsAndSamplesGoThroughTheTool) {
  if (!installed()) GTEST_SKIP() << "no .venv: run tools/setup.sh";
  const PrepareTool tool = find_prepare_tool();
  EXPECT_EQ(encode_text(tool, path("model"), "b c"), (std::vector<std::int32_t>{2, 3}));
  EXPECT_EQ(encode_text(tool, path("model"), ""), (std::vector<std::int32_t>{}));
  EXPECT_EQ(decode_ids(tool, path("model"), std::vector<std::int32_t>{1, 2}), "a b");
  MicroBatch batch;
  batch.rows = 1;
  batch.length = 4;
  batch.ids = {1, 2, 3, 0};
  batch.targets = {kIgnore, 3, kIgnore, kIgnore};
  batch.documents = {0, 0, 0, -1};
  EXPECT_EQ(show_sample(tool, path("model"), batch, 0),
            "read      2 tokens  \"a b\"\nlearn     1 tokens  \"c\"\n");
}

TEST_F(PrepareTest, KeyFollowsContentTokenizerAndOptions) {
  const std::string key = cache_key(request_);
  std::filesystem::copy(path("a.txt"), path("b.txt"));
  PrepareRequest other = request_;
  other.sources = {path("b.txt")};
  EXPECT_EQ(cache_key(other), key) << "another name, the same text";
  other.train_on_prompt = true;
  EXPECT_NE(cache_key(other), key);
  other = request_;
  other.format = "text";
  EXPECT_NE(cache_key(other), key);
  write_text("a.txt", "a b c b");
  EXPECT_NE(cache_key(request_), key);
  write_text("a.txt", "a b c a");
  EXPECT_EQ(cache_key(request_), key);
  write_text("model/chat_template.jinja", "x");
  EXPECT_NE(cache_key(request_), key);
}

TEST_F(PrepareTest, ToolErrorsArePassedOn) {
  fake_python("echo 'preparing: 5' >&2; echo 'error: a.txt:3: byte 0xe9 is not UTF-8' >&2; exit 2");
  EXPECT_EQ(error_of([&] { prepare(request_); }), "a.txt:3: byte 0xe9 is not UTF-8");
  fake_python(
      "echo 'Traceback' >&2; echo \"ModuleNotFoundError: No module named 'tokenizers'\" >&2; exit "
      "1");
  EXPECT_EQ(
      error_of([&] { prepare(request_); }, ErrorKind::kFailed),
      "preparing " + path("a.txt") +
          " failed (exit code 1): ModuleNotFoundError: No module named 'tokenizers'\n"
          "  hint: tools/setup.sh installs what is missing; ZINF_PYTHON names another interpreter");
  fake_python("kill -9 $$");
  EXPECT_NE(error_of([&] { prepare(request_); }, ErrorKind::kFailed).find("ended by signal 9"),
            std::string::npos);
  fake_python("exit 0");
  EXPECT_NE(error_of([&] { prepare(request_); }, ErrorKind::kFailed).find("left no file"),
            std::string::npos);
  request_.python = path("none");
  EXPECT_EQ(error_of([&] { prepare(request_); }, ErrorKind::kFailed),
            "can't start " + path("none") + ": No such file or directory");
}

TEST_F(PrepareTest, ExpandsPatternsInOrder) {
  write_text("b[1].txt", "x");
  write_text("c.txt", "x");
  EXPECT_EQ(
      expand_paths({path("c.txt"), path("[ac]*.txt"), path("b[1].txt")}),
      (std::vector<std::string>{path("c.txt"), path("a.txt"), path("c.txt"), path("b[1].txt")}));
  EXPECT_EQ(error_of([&] { expand_paths({path("model")}); }),
            path("model") + " is a folder, expected files\n  hint: for all its texts: " +
                path("model") + "/*.txt");
  EXPECT_EQ(error_of([&] { expand_paths({"/dev/null"}); }), "/dev/null is no regular file");
  std::filesystem::create_directories(path("folders/d1"));
  EXPECT_EQ(error_of([&] {
              expand_paths({path("c.txt"), path("folders/d*")});
            }),
            "no file matches " + path("folders/d*"));
}

}  // namespace
}  // namespace zinf::data
