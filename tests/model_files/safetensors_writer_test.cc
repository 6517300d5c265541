#include "engine/model/safetensors_writer.h"

#include "tests/model_files/model_files_fixture.h"

namespace zinf::model {
namespace {

using SafetensorsWriterTest = ModelFilesTest;

TEST_F(SafetensorsWriterTest, WritesExactlyTheseBytes) {
  write_safetensors(path("f"), {given_fp32("b", {1, 2}, {1, 2}), given_bf16("a", {}, {3})});
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"BF16","shape":[],"data_offsets":[8,10]}})";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(read("f"), raw_safetensors(padded, bytes_of(std::vector<float>{1, 2}) +
                                                   std::string("\x40\x40", 2)));
  EXPECT_FALSE(std::filesystem::exists(path("f.partial")));
}

TEST_F(SafetensorsWriterTest, PadsEveryHeaderToEightBytes) {
  for (int length = 1; length <= 16; ++length) {
    write_safetensors(path("f"), {given_fp32(std::string(length, 'n'), {1}, {1})});
    const std::string bytes = read("f");
    EXPECT_EQ(static_cast<unsigned char>(bytes[0]) % 8, 0) << length;
    EXPECT_EQ(SafetensorsFile::open(path("f")).tensors().size(), 1u);
  }
}

TEST_F(SafetensorsWriterTest, NamesAreEscaped) {
  const std::string name = "quote\" slash\\ new\nline \xC3\xA9";
  write_safetensors(path("f"), {given_fp32(name, {1}, {4})});
  EXPECT_NE(SafetensorsFile::open(path("f")).find(name), nullptr);
}

TEST_F(SafetensorsWriterTest, AppendsMayCutAnywhere) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::string data = bytes_of(values);
  {
    SafetensorsWriter writer(path("f"), {{"a", SafeType::kF32, {2}}, {"b", SafeType::kF32, {4}}});
    for (std::size_t at = 0; at < data.size(); at += 5)
      writer.append(data.data() + at, std::min<std::size_t>(5, data.size() - at));
    writer.finish();
  }
  const SafetensorsFile file = SafetensorsFile::open(path("f"));
  float last = 0;
  file.read(*file.find("b"), 3, 1, &last);
  EXPECT_EQ(last, 6);
}

TEST_F(SafetensorsWriterTest, LeavesNothingUnlessFinished) {
  write("f", "old");
  {
    SafetensorsWriter writer(path("f"), {{"a", SafeType::kF32, {2}}});
    EXPECT_TRUE(std::filesystem::exists(path("f.partial")));
  }
  EXPECT_FALSE(std::filesystem::exists(path("f.partial")));
  EXPECT_EQ(read("f"), "old");
}

TEST_F(SafetensorsWriterTest, ShardsGoByBytesAndKeepOrder) {
  const std::vector<TensorDeclaration> tensors = {{"a", SafeType::kF32, {100}},
                                                  {"b", SafeType::kF32, {100}},
                                                  {"c", SafeType::kF32, {300}},
                                                  {"d", SafeType::kF32, {10}},
                                                  {"e", SafeType::kI64, {10}}};
  const std::vector<Shard> shards = plan_shards(tensors, 800);
  ASSERT_EQ(shards.size(), 3u);
  EXPECT_EQ(shards[0].file_name, "model-00001-of-00003.safetensors");
  EXPECT_EQ(shards[0].tensors.size(), 2u);
  EXPECT_EQ(shards[1].tensors[0].name, "c");  // larger than a shard: alone
  EXPECT_EQ(shards[2].tensors[0].name, "e");  // wide types first
  EXPECT_EQ(shards[2].tensors[1].name, "d");
  const std::string index = shard_index_json(shards);
  expect_has(index, "\"total_size\": 2120");
  expect_has(index, "\"c\": \"model-00002-of-00003.safetensors\"");
  EXPECT_EQ(plan_shards(tensors, 0).size(), 1u);
  EXPECT_EQ(plan_shards(tensors, 0)[0].file_name, "model.safetensors");
}

TEST_F(SafetensorsWriterTest, AFullDiskIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  PosixFile file = PosixFile::create("/dev/full");
  const std::string text = error_of([&] { file.append("abc", 3); }, ErrorKind::kFailed);
  expect_has(text, "writing 3 bytes to /dev/full: No space left on device");
}

}  // namespace
}  // namespace zinf::model
