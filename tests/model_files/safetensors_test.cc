// Verdicts on malformed and on unusual files, as measured from the reference implementation.
#include "engine/model/safetensors.h"

#include "tests/model_files/model_files_fixture.h"

namespace zinf::model {
namespace {

class SafetensorsTest : public ModelFilesTest {
 protected:
  std::string refusal(const std::string& bytes) {
    write("f.safetensors", bytes);
    const std::string text = error_of([&] { SafetensorsFile::open(path("f.safetensors")); });
    expect_has(text, path("f.safetensors") + " is no valid safetensors file: ");
    return text;
  }
  SafetensorsFile accepted(const std::string& header, const std::string& data) {
    write("f.safetensors", raw_safetensors(header, data));
    return SafetensorsFile::open(path("f.safetensors"));
  }
};

std::string with_length(std::uint64_t length, const std::string& rest) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(length >> (8 * i));
  return file + rest;
}

// Two F32 tensors with the given ranges.
std::string two(const std::string& a, const std::string& b) {
  return R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)" + a +
         R"(},"b":{"dtype":"F32","shape":[2],"data_offsets":)" + b + "}}";
}
std::string one(const std::string& type, const std::string& shape, const std::string& offsets) {
  return R"({"t":{"dtype":)" + type + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

const std::string k8(8, '\1');
const std::string k16(16, '\1');

TEST_F(SafetensorsTest, RefusesHeaderLengths) {
  expect_has(refusal(with_length(std::uint64_t{1} << 63, "{}")),
             "claims 9223372036854775808 bytes");
  expect_has(refusal(with_length(~std::uint64_t{0}, "{}")), "claims 18446744073709551615 bytes");
  expect_has(refusal(with_length(100'000'001, "{}")), "the format allows 100000000");
  expect_has(refusal(with_length(3, "{}")), "claims 3 bytes but the file has 10");
  expect_has(refusal(with_length(0, "{}")), "no valid JSON");
  expect_has(refusal("abc"), "it has 3 bytes");
  expect_has(refusal(""), "it has 0 bytes");
}

TEST_F(SafetensorsTest, RefusesTheLimitBeforeReadingTheHeader) {
  // A sparse file that is large enough: only the limit stands in the way.
  write("f.safetensors", with_length(100'000'001, "{}"));
  std::filesystem::resize_file(path("f.safetensors"), 200'000'000);
  expect_has(error_of([&] { SafetensorsFile::open(path("f.safetensors")); }),
             "the format allows 100000000");
}

TEST_F(SafetensorsTest, RefusesRanges) {
  const auto file = [&](const std::string& header, const std::string& data) {
    return refusal(raw_safetensors(header, data));
  };
  expect_has(file(two("[0,8]", "[4,12]"), k16),
             "tensor \"b\" begins at byte 4 of the data; expected 8 (it overlaps");
  expect_has(file(two("[0,8]", "[0,8]"), k16),
             "tensor \"b\" begins at byte 0 of the data; expected 8 (it overlaps");
  expect_has(file(two("[0,8]", "[12,20]"), k16 + k8), "expected 8 (a hole before it)");
  expect_has(file(two("[8,16]", "[16,24]"), k16 + k8),
             "tensor \"a\" begins at byte 8 of the data; expected 0");
  expect_has(file(two("[8,0]", "[8,16]"), k16),
             "tensor \"a\": data_offsets begin at 8 and end before, at 0");
  expect_has(file(two("[-8,0]", "[0,8]"), k8),
             "tensor \"a\": data_offsets holds the negative number -8");
  expect_has(file(two("[0,8]", "[8,16]"), k16 + "x"),
             "1 bytes after the last tensor belong to nothing");
  expect_has(file(two("[0,8]", "[8,16]"), k8 + "1234567"),
             "tensor \"b\" ends at byte 16 of the data but the file holds only 15");
  expect_has(file(two("[0,8]", "[8,16]"), ""),
             "tensor \"a\" ends at byte 8 of the data but the file holds only 0");
  expect_has(file(two("[0,18446744073709551615]", "[8,16]"), k16),
             "data_offsets holds the number 18446744073709551615");
  expect_has(file(two("[0]", "[8,16]"), k16), "data_offsets has 1 numbers; expected 2");
  expect_has(file(two("[0,8,8]", "[8,16]"), k16), "more than two numbers");
  expect_has(file(two("[0.0,8]", "[8,16]"), k16), "data_offsets holds the number 0.0");
  expect_has(file(two("[[0],8]", "[8,16]"), k16), "data_offsets holds a list");
  expect_has(file(two("8", "[8,16]"), k16), "tensor \"a\": data_offsets holds the number 8");
}

TEST_F(SafetensorsTest, RefusesShapesAndTypes) {
  const auto file = [&](const std::string& type, const std::string& shape) {
    return refusal(raw_safetensors(one(type, shape, "[0,8]"), k8));
  };
  expect_has(file("\"F32\"", "[3]"),
             "tensor \"t\": shape [3] of F32 takes 12 bytes but data_offsets hold 8");
  expect_has(file("\"F32\"", "[4294967296,4294967296]"), "is no size that a file can have");
  expect_has(file("\"F32\"", "[4611686018427387904,4]"), "is no size that a file can have");
  expect_has(file("\"F32\"", "[2305843009213693952]"), "is no size that a file can have");
  expect_has(file("\"F32\"", "[4294967296,4294967296,0]"), "is no size that a file can have");
  expect_has(file("\"F32\"", "[-2]"), "shape holds the negative number -2");
  expect_has(file("\"F32\"", "2"), "shape holds the number 2; expected a list");
  expect_has(file("\"F32\"", "[\"2\"]"), "shape holds a string");
  expect_has(file("\"F32\"", "[null]"), "shape holds null");
  expect_has(file("\"F33\"", "[2]"), "type \"F33\" is unknown");
  expect_has(file("\"f32\"", "[2]"), "type \"f32\" is unknown");
  expect_has(file("32", "[2]"), "dtype holds the number 32");
  expect_has(file("\"F4\"", "[15]"), "shape [15] of F4 is no size that a file can have");
}

TEST_F(SafetensorsTest, RefusesEntries) {
  const auto file = [&](const std::string& header) { return refusal(raw_safetensors(header, "")); };
  expect_has(file(R"({"__metadata__":{"a":1}})"),
             "__metadata__ \"a\" is the number 1, not a string");
  expect_has(file(R"({"__metadata__":{"a":{}}})"), "__metadata__ \"a\" is an object, not a string");
  expect_has(file(R"({"__metadata__":[]})"), "is a list, not an object");
  expect_has(file(R"({"t":[]})"), "tensor \"t\" is a list, not an object");
  expect_has(file(R"({"t":{"shape":[0],"data_offsets":[0,0]}})"), "tensor \"t\" has no dtype");
  expect_has(file(R"({"t":{"dtype":"F32","data_offsets":[0,0]}})"), "tensor \"t\" has no shape");
  expect_has(file(R"({"t":{"dtype":"F32","shape":[0]}})"), "tensor \"t\" has no data_offsets");
  expect_has(file(one("\"F32\"", "[0]", "[0,0]").substr(0, 20)), "no valid JSON");
  expect_has(file("[]"), "its header is a list, not an object");
  expect_has(file("{} x"), "no valid JSON");
  expect_has(file(std::string("{}\0", 3)), "no valid JSON");
  expect_has(file("\xEF\xBB\xBF{}"), "no valid JSON");
  expect_has(file("{\"\xFF\":{}}"), "no valid JSON");
  const std::string entry = one("\"F32\"", "[0]", "[0,0]");
  expect_has(file(entry.substr(0, entry.size() - 1) + "," + entry.substr(1)),
             "tensor \"t\" appears twice");
  const std::string deep = std::string(1000, '[') + std::string(1000, ']');
  expect_has(file(R"({"t":{"x":)" + deep + R"(,"dtype":"F32","shape":[0],"data_offsets":[0,0]}})"),
             "nested too deeply");
}

TEST_F(SafetensorsTest, AcceptsUnusualFiles) {
  EXPECT_TRUE(accepted("{}", "").tensors().empty());
  EXPECT_TRUE(accepted(R"({"__metadata__":{}})", "").tensors().empty());
  EXPECT_TRUE(accepted(R"({"__metadata__":null})", "").metadata().empty());
  EXPECT_EQ(accepted(R"({"__metadata__":{"format":"pt"}})", "").metadata().at("format"), "pt");
  EXPECT_EQ(accepted(one("\"F32\"", "[0,7]", "[0,0]"), "").find("t")->elements, 0);
  EXPECT_EQ(accepted(one("\"F32\"", "[0,4294967296,4294967296]", "[0,0]"), "").find("t")->elements,
            0);
  EXPECT_EQ(accepted(one("\"F64\"", "[]", "[0,8]"), k8).find("t")->elements, 1);
  EXPECT_EQ(accepted(one("\"F32\"", "[2]", "[0,8]") + std::string(500, ' '), k8).tensors().size(),
            1u);
  EXPECT_EQ(accepted(" " + one("\"F32\"", "[2]", "[0,8]"), k8).tensors().size(), 1u);
  const SafetensorsFile swapped = accepted(two("[8,16]", "[0,8]"), k16);
  EXPECT_EQ(swapped.tensors()[0].name, "b");
  EXPECT_EQ(swapped.find("a")->begin, 8u);
  EXPECT_EQ(
      accepted(
          R"({"t":{"extra":{"a":[1,{"b":null}]},"dtype":"F32","more":-1.5,"shape":[2],"data_offsets":[0,8],"z":"s"}})",
          k8)
          .tensors()
          .size(),
      1u);
}

TEST_F(SafetensorsTest, AcceptsHeadersNearBufferBorders) {
  for (const std::size_t size : {4088, 4096, 65528, 65536}) {
    std::string header = one("\"F32\"", "[2]", "[0,8]");
    header.append(size - header.size(), ' ');
    const SafetensorsFile file = accepted(header, bytes_of(std::vector<float>{1.5f, -2.5f}));
    float values[2];
    file.read(*file.find("t"), 0, 2, values);
    EXPECT_EQ(values[1], -2.5f) << size;
  }
}

TEST_F(SafetensorsTest, KnowsEveryType) {
  const std::vector<std::pair<const char*, int>> types = {
      {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
      {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
      {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
      {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
      {"I64", 64},        {"U64", 64}};
  for (const auto& [name, bits] : types) {
    const std::string bytes = std::to_string(bits);
    const SafetensorsFile file = accepted(
        one(std::string("\"") + name + "\"", "[8]", "[0," + bytes + "]"), std::string(bits, 'x'));
    EXPECT_EQ(bits_of(file.find("t")->type), bits) << name;
    EXPECT_EQ(name_of(file.find("t")->type), name);
    std::string data(bits, ' ');
    file.read_bytes(*file.find("t"), 0, bits, data.data());
    EXPECT_EQ(data, std::string(bits, 'x')) << name;
  }
}

TEST_F(SafetensorsTest, ReadsRanges) {
  write_safetensors(path("f.safetensors"),
                    {given_fp32("a", {5}, {1, 2, 3, 4, 5}), given_bf16("b", {2, 2}, {6, 7, 8, 9})});
  const SafetensorsFile file = SafetensorsFile::open(path("f.safetensors"));
  float two_values[2];
  file.read(*file.find("a"), 3, 2, two_values);
  EXPECT_EQ(two_values[0], 4);
  EXPECT_EQ(two_values[1], 5);
  std::uint16_t half = 0;
  file.read(*file.find("b"), 3, 1, &half);
  EXPECT_EQ(from_bf16(half), 9);
  EXPECT_EQ(file.find("c"), nullptr);
}

TEST_F(SafetensorsTest, NamesTheTensorWhenTheFileShrinksAfterOpening) {
  write_safetensors(path("f.safetensors"), {given_fp32("a", {4}, {1, 2, 3, 4})});
  const SafetensorsFile file = SafetensorsFile::open(path("f.safetensors"));
  std::filesystem::resize_file(path("f.safetensors"),
                               std::filesystem::file_size(path("f.safetensors")) - 4);
  float values[4];
  const std::string text =
      error_of([&] { file.read(*file.find("a"), 0, 4, values); }, ErrorKind::kFailed);
  expect_has(text, "tensor \"a\": reading 16 bytes at ");
  expect_has(text, "the file ends after 12 of them");
}

TEST_F(SafetensorsTest, RefusesWhatIsNoFile) {
  expect_has(error_of([&] { SafetensorsFile::open(folder_.string()); }), "is not a regular file");
  expect_has(error_of([&] { SafetensorsFile::open(path("none")); }, ErrorKind::kFailed),
             "No such file");
}

}  // namespace
}  // namespace zinf::model
