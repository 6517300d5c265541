#include "engine/model/hf_folder.h"

#include <cmath>
#include <limits>

#include "tests/model_files/model_files_fixture.h"

namespace zinf::model {
namespace {

class HfFolderTest : public ModelFilesTest {
 protected:
  std::string refusal() {
    return error_of([&] { HfFolder::open(folder_.string()); });
  }
  // Two shards and their index.
  void write_shards() {
    write("config.json", R"({"model_type": "llama"})");
    write_safetensors(path("model-00001-of-00002.safetensors"), {given_fp32("a", {2}, {1, 2})});
    write_safetensors(path("model-00002-of-00002.safetensors"), {given_fp32("b", {2}, {3, 4})});
    write("model.safetensors.index.json", R"({"metadata": {"total_size": 16}, "weight_map": {
        "a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})");
  }
};

TEST_F(HfFolderTest, OpensOneFile) {
  write("config.json", R"({"model_type": "llama", "hidden_size": 16})");
  write_safetensors(path("model.safetensors"),
                    {given_fp32("a", {2, 2}, {1, 2, 3, 4}), given_bf16("b", {1}, {5})});
  const HfFolder folder = HfFolder::open(folder_.string());
  EXPECT_EQ(folder.config().integer("hidden_size", 1, 100), 16);
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(folder.sharded());
  EXPECT_TRUE(folder.has("a"));
  EXPECT_FALSE(folder.has("c"));
  float value = 0;
  folder.read_fp32("b", 0, 1, &value);
  EXPECT_EQ(value, 5);
}

TEST_F(HfFolderTest, OpensShardsAndSurvivesAMove) {
  write_shards();
  HfFolder opened = HfFolder::open(folder_.string());
  const HfFolder folder = std::move(opened);
  EXPECT_TRUE(folder.sharded());
  EXPECT_EQ(folder.files().size(), 2u);
  float values[2];
  folder.read_fp32("b", 0, 2, values);
  EXPECT_EQ(values[1], 4);
}

TEST_F(HfFolderTest, RandomInitNeedsOnlyTheConfig) {
  write("config.json", R"({"model_type": "gpt2"})");
  write("model.safetensors", "damaged");
  EXPECT_TRUE(HfFolder::open(folder_.string(), FolderUse::kConfigOnly).names().empty());
}

TEST_F(HfFolderTest, SaysWhatIsMissing) {
  expect_has(refusal(), "model folder " + folder_.string() + " has no config.json");
  write("config.json", "{}");
  expect_has(refusal(), "has no model.safetensors and no model.safetensors.index.json");
  write("config.json", "{\"a\": }");
  expect_has(refusal(), path("config.json") + ": no valid JSON");
}

TEST_F(HfFolderTest, RefusesPicklesWithTheReason) {
  write("config.json", "{}");
  write("pytorch_model.bin", "x");
  const std::string text = refusal();
  expect_has(text, "has pytorch_model.bin but no model.safetensors");
  expect_has(text, "a pickle can run code");
}

TEST_F(HfFolderTest, RecognisesOtherFormats) {
  write("config.json", "{}");
  write("model.Q4.gguf", "x");
  expect_has(refusal(), "has model.Q4.gguf but no model.safetensors");
  write("global_step10/zero_pp_rank_0_mp_rank_00_optim_states.pt", "x");
  expect_has(refusal(), "is a DeepSpeed ZeRO checkpoint");
  std::filesystem::remove(path("config.json"));
  expect_has(refusal(), "zero_to_fp32.py");
}

TEST_F(HfFolderTest, RefusesDamagedShards) {
  write_shards();
  const std::string second = path("model-00002-of-00002.safetensors");
  std::filesystem::resize_file(second, std::filesystem::file_size(second) - 1);
  const std::string text = refusal();
  expect_has(text, second);
  expect_has(text, "tensor \"b\" ends at byte 8 of the data but the file holds only 7");
  std::filesystem::remove(second);
  expect_has(refusal(), "names model-00002-of-00002.safetensors, which is not in the folder");
}

TEST_F(HfFolderTest, RefusesDisagreeingShards) {
  write_shards();
  write_safetensors(path("model-00002-of-00002.safetensors"),
                    {given_fp32("a", {1}, {3}), given_fp32("b", {1}, {3})});
  expect_has(refusal(),
             "tensor \"a\" is in two files: " + path("model-00001-of-00002.safetensors"));
  write_safetensors(path("model-00002-of-00002.safetensors"), {given_fp32("c", {1}, {3})});
  expect_has(refusal(),
             "says that model-00002-of-00002.safetensors holds tensor \"b\", which it does not");
}

TEST_F(HfFolderTest, AnIndexCannotLeaveTheFolder) {
  write("config.json", "{}");
  for (const char* name : {"../x.safetensors", "/x", "", ".hidden", "a/b", "..", "a\\u0000b"}) {
    write("model.safetensors.index.json",
          std::string("{\"weight_map\": {\"a\": \"") + name + "\"}}");
    expect_has(refusal(), "expected a file in the same folder");
  }
  write("model.safetensors.index.json", R"({"weight_map": {"a": 3}})");
  expect_has(refusal(), "weight_map.a is 3; expected a string");
  write("model.safetensors.index.json", R"({"weight_map": []})");
  expect_has(refusal(), "weight_map is []; expected an object");
  write("model.safetensors.index.json", "{}");
  expect_has(refusal(), "weight_map is absent");
}

TEST_F(HfFolderTest, ConvertsEveryWeightType) {
  write("config.json", "{}");
  const std::vector<double> doubles = {1.0 / 3, -1e-300};
  const std::vector<std::uint16_t> halves = {0x3C00, 0x8001};
  write_safetensors(path("model.safetensors"),
                    {{"d", SafeType::kF64, {2}, bytes_of(doubles)},
                     {"f", SafeType::kF32, {1}, bytes_of(std::vector<float>{0.1f})},
                     {"h", SafeType::kF16, {2}, bytes_of(halves)}});
  const HfFolder folder = HfFolder::open(folder_.string());
  float values[2];
  folder.read_fp32("d", 0, 2, values);
  EXPECT_EQ(values[0], static_cast<float>(1.0 / 3));
  EXPECT_EQ(values[1], 0);
  folder.read_fp32("h", 0, 2, values);
  EXPECT_EQ(values[0], 1);
  EXPECT_EQ(values[1], -0x1p-24f);
  folder.read_fp32("f", 0, 1, values);
  EXPECT_EQ(values[0], 0.1f);
}

TEST_F(HfFolderTest, RangesLargerThanTheConversionChunk) {
  write("config.json", "{}");
  const std::vector<float> values = counted(200'000, 3);
  write_safetensors(path("model.safetensors"), {given_bf16("b", {200'000}, values)});
  const HfFolder folder = HfFolder::open(folder_.string());
  std::vector<float> got(150'000);
  folder.read_fp32("b", 50'000, 150'000, got.data());
  EXPECT_EQ(got, std::vector<float>(values.begin() + 50'000, values.end()));
}

TEST_F(HfFolderTest, NamesTheValueThatIsNotFinite) {
  write("config.json", "{}");
  std::vector<float> values(70'000, 1);
  values[66'000] = std::numeric_limits<float>::infinity();
  write_safetensors(path("model.safetensors"),
                    {{"d", SafeType::kF64, {1}, bytes_of(std::vector<double>{1e39})},
                     given_fp32("w", {70'000}, values)});
  const HfFolder folder = HfFolder::open(folder_.string());
  std::vector<float> got(70'000);
  expect_has(error_of([&] { folder.read_fp32("w", 1000, 69'000, got.data()); }),
             "tensor \"w\" (F32) holds inf at element 66000");
  expect_has(error_of([&] { folder.read_fp32("d", 0, 1, got.data()); }),
             "tensor \"d\" (F64) holds inf at element 0");
}

}  // namespace
}  // namespace zinf::model
