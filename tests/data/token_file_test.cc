#include "engine/data/token_file.h"

#include "tests/data/data_fixture.h"

namespace zinf::data {
namespace {

using TokenFileTest = DataTest;

std::vector<std::int32_t> ids_of(const TokenFile& file, std::uint64_t begin, std::uint64_t count) {
  std::vector<std::int32_t> ids(count);
  file.read_tokens(begin, count, ids.data());
  return ids;
}

std::vector<char> contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_F(TokenFileTest, RoundTripOf16And32BitsWithMask) {
  for (const std::uint64_t vocabulary : {70000, 60000}) {
    TokenWriter writer(path("a.tokens"), vocabulary);
    writer.add(std::vector<std::int32_t>{5, 6, 7}, std::vector<std::uint8_t>{0, 0, 1});
    writer.add({});
    writer.add(std::vector<std::int32_t>{59999, 1, 2, 3, 4, 5, 6},
               std::vector<std::uint8_t>{1, 0, 1, 0, 1, 1, 0});
    writer.finish();
    const TokenFile file = TokenFile::open(path("a.tokens"));
    EXPECT_EQ(file.width(), vocabulary > 65536 ? 4 : 2);
    EXPECT_EQ(file.tokens(), 10u);
    EXPECT_EQ(file.documents(), 3u);
    EXPECT_EQ(file.document(1).length, 0u);
    EXPECT_EQ(file.document(2).begin, 3u);
    EXPECT_EQ(ids_of(file, 2, 3), (std::vector<std::int32_t>{7, 59999, 1}));
    std::vector<std::uint8_t> mask(8);
    file.read_mask(2, 8, mask.data());
    EXPECT_EQ(mask, (std::vector<std::uint8_t>{1, 1, 0, 1, 0, 1, 1, 0}));
    EXPECT_EQ(file.scan(vocabulary).size(), 32u);
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1)
      << "a temporary file was left";
}

TEST_F(TokenFileTest, UnfinishedFileLeavesNothing) {
  { TokenWriter(path("a.tokens"), 10).add(std::vector<std::int32_t>{1}); }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

// BR-060
TEST_F(TokenFileTest, IdsMustFitWidthAndVocabulary) {
  EXPECT_EQ(error_of([&] { TokenWriter(path("a"), 100000, 2); }),
            "writing " + path("a") +
                ": a vocabulary of 100000 does not fit 16-bit tokens, which hold ids 0 to 65535"
                "\n  hint: use 32-bit tokens");
  TokenWriter writer(path("b"), 100);
  EXPECT_EQ(error_of([&] {
              writer.add(std::vector<std::int32_t>{1, 100});
            }),
            "writing " + path("b") + ": token 1 has id 100, outside the vocabulary of 100");
  const TokenFile file = TokenFile::open(counted_file("c", {3, 9}));
  EXPECT_EQ(error_of([&] { file.scan(105); }),
            path("c") +
                ": token 8 has id 105, outside the vocabulary of 105 (ids 0 to 104)"
                "\n  hint: the file was made with another tokenizer, or with another token width");
  EXPECT_NE(error_of([&] { file.scan(108); }).find("token 11 has id 108"), std::string::npos)
      << "the vocabulary's size is the first id outside it";
  EXPECT_EQ(file.scan(109), file.scan(60000));
}

TEST_F(TokenFileTest, IdBeyondTheFirstScanBlockIsFound) {
  std::vector<std::uint16_t> ids(600000, 3);
  ids[599999] = 77;
  write_vector("bare.bin", ids);
  EXPECT_NE(error_of([&] {
              TokenFile::open(path("bare.bin"), 2).scan(50);
            }).find("token 599999 has id 77"),
            std::string::npos);
}

TEST_F(TokenFileTest, BareFilesNeedAWidthThatFits) {
  write_vector<std::uint16_t>("bare.bin", {1, 2, 3, 65535, 5});
  EXPECT_NE(error_of([&] { TokenFile::open(path("bare.bin")); }).find("data.token_width: 16"),
            std::string::npos);
  EXPECT_EQ(ids_of(TokenFile::open(path("bare.bin"), 2), 2, 2),
            (std::vector<std::int32_t>{3, 65535}));
  EXPECT_NE(error_of([&] {
              TokenFile::open(path("bare.bin"), 4);
            }).find("10 bytes are not a whole number of 32-bit"),
            std::string::npos);
  write_bytes("odd.bin", "abcde", 5);
  EXPECT_NE(error_of([&] {
              TokenFile::open(path("odd.bin"), 2);
            }).find("5 bytes are not a whole number of 16-bit"),
            std::string::npos);
  write_vector("wide.bin", std::vector<std::uint32_t>(100, 4464));
  EXPECT_NE(error_of([&] {
              TokenFile::open(path("wide.bin"), 2);
            }).find("looks like a file of 32-bit tokens"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              TokenFile::open(counted_file("own", {4}), 4);
            }).find("a token width of 32 bits was asked for, but its header says 16"),
            std::string::npos);
}

// BR-061
TEST_F(TokenFileTest, ShortFilesSayByHowMuch) {
  counted_file("a", {4, 6});
  std::vector<char> bytes = contents(path("a"));
  write_bytes("cut", bytes.data(), bytes.size() - 1);
  EXPECT_EQ(error_of([&] { TokenFile::open(path("cut")); }),
            path("cut") +
                ": expected 240 bytes (10 tokens of 2 bytes, 2 documents), found 239: 1 bytes short"
                "\n  hint: incomplete copy, or not the file that the header describes");
  auto damaged = bytes;
  damaged[216 + 8] = 11;  // the first document's end
  write_vector("past", damaged);
  EXPECT_NE(error_of([&] {
              TokenFile::open(path("past"));
            }).find("document table decreases: document 1 starts at token 11"),
            std::string::npos);
  damaged[216 + 8] = 4;
  damaged[216 + 16] = 12;
  write_vector("past", damaged);
  EXPECT_NE(error_of([&] { TokenFile::open(path("past")); })
                .find("document 1 ends at token 12, but " + path("past") +
                      " holds 10 tokens: it is 2 tokens short"),
            std::string::npos);
  damaged[216 + 16] = 9;
  write_vector("past", damaged);
  EXPECT_NE(error_of([&] { TokenFile::open(path("past")); }).find("the index is 1 tokens short"),
            std::string::npos);
}

TEST_F(TokenFileTest, HostileHeaders) {
  counted_file("a", {4, 6});
  const std::vector<char> bytes = contents(path("a"));
  for (std::size_t at = 8; at < 80; ++at) {  // every byte of every number, set high
    auto damaged = bytes;
    damaged[at] = static_cast<char>(0xff);
    write_vector("bad", damaged);
    if (at == 16 || at == 17) continue;  // 60159 and 65376 are vocabularies as good as 60000
    EXPECT_NE(error_of([&] { TokenFile::open(path("bad")); }), "no error") << "byte " << at;
  }
  auto old = bytes;
  old[8] = 2;
  write_vector("bad", old);
  EXPECT_NE(error_of([&] {
              TokenFile::open(path("bad"));
            }).find("token file version 2, this program reads version 1"),
            std::string::npos);
  write_bytes("empty", "", 0);
  EXPECT_EQ(error_of([&] { TokenFile::open(path("empty")); }),
            path("empty") + " is empty: expected a token file");
  EXPECT_NE(error_of([&] { TokenFile::open(path("none")); }).find("No such file"),
            std::string::npos);
  EXPECT_NE(error_of([&] { TokenFile::open(folder_.string()); }).find("not a regular file"),
            std::string::npos);
}

TEST_F(TokenFileTest, LlmcFiles) {
  std::vector<std::int32_t> header(256, 0);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = 3;
  std::vector<std::uint16_t> ids{50256, 7, 8};
  std::string file(reinterpret_cast<char*>(header.data()), 1024);
  file.append(reinterpret_cast<char*>(ids.data()), 6);
  write_text("a.bin", file);
  const TokenFile tokens = TokenFile::open(path("a.bin"));
  EXPECT_EQ(tokens.format(), TokenFormat::kLlmc);
  EXPECT_EQ(ids_of(tokens, 0, 3), (std::vector<std::int32_t>{50256, 7, 8}));
  write_text("b.bin", file.substr(0, 1028));
  EXPECT_NE(error_of([&] { TokenFile::open(path("b.bin")); }).find("2 bytes short"),
            std::string::npos);
}

TEST_F(TokenFileTest, MegatronFiles) {
  const auto index = [&](std::vector<std::int32_t> sizes, std::vector<std::int64_t> positions) {
    std::string text("MMIDIDX\0\0", 9);
    const std::uint64_t version = 1;
    const std::uint64_t count = sizes.size();
    const std::uint64_t marks = count + 1;
    text.append(reinterpret_cast<const char*>(&version), 8) += '\x08';
    text.append(reinterpret_cast<const char*>(&count), 8)
        .append(reinterpret_cast<const char*>(&marks), 8);
    text.append(reinterpret_cast<char*>(sizes.data()), sizes.size() * 4);
    text.append(reinterpret_cast<char*>(positions.data()), positions.size() * 8);
    text.append(marks * 8, '\0');
    return text;
  };
  write_vector<std::uint16_t>("m.bin", {1, 2, 3, 4, 5});
  write_text("m.idx", index({2, 0, 3}, {0, 4, 4}));
  const TokenFile file = TokenFile::open(path("m.bin"));
  EXPECT_EQ(file.documents(), 3u);
  EXPECT_EQ(file.document(2).begin, 2u);
  EXPECT_EQ(file.document(2).length, 3u);
  EXPECT_EQ(TokenFile::open(path("m.idx")).tokens(), 5u);
  write_text("m.idx", index({2, 0, 4}, {0, 4, 4}));
  EXPECT_NE(error_of([&] {
              TokenFile::open(path("m.bin"));
            }).find("m.bin holds 5 tokens: it is 1 tokens short"),
            std::string::npos);
  write_text("m.idx", index({2, 0, -3}, {0, 4, 4}));
  EXPECT_NE(error_of([&] { TokenFile::open(path("m.bin")); }).find("document 2 has length -3"),
            std::string::npos);
  write_text("m.idx", index({2, 0, 3}, {0, 4, 4}).substr(0, 80));
  EXPECT_NE(error_of([&] { TokenFile::open(path("m.bin")); }).find("m.idx: expected 102 bytes"),
            std::string::npos);
}

TEST_F(TokenFileTest, DocumentLongerThan65535Tokens) {
  TokenWriter writer(path("long"), 10);
  writer.add(std::vector<std::int32_t>(70000, 1));
  writer.add(std::vector<std::int32_t>(2, 2));
  writer.finish();
  EXPECT_EQ(TokenFile::open(path("long")).document(1).begin, 70000u);
}

}  // namespace
}  // namespace zinf::data
