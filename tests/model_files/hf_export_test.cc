#include "engine/model/hf_export.h"

#include "engine/base/machine.h"
#include "tests/model_files/model_files_fixture.h"

namespace zinf::model {
namespace {

// A tied table that is not the first tensor of the file, a layer, and buffers.
class HfExportTest : public ModelFilesTest {
 protected:
  void SetUp() override {
    ModelFilesTest::SetUp();
    std::filesystem::create_directories(path("in"));
    write(
        "in/config.json",
        R"({"model_type":"llama","torch_dtype":"bfloat16","rms_norm_eps":1e-05,"head_dim":16,"zeta":1,"alpha":2})");
    write("in/tokenizer.json", "{\"version\": \"1.0\"}");
    write("in/additional_chat_templates/tools.jinja", "{{ x }}");
    write("in/pytorch_model.bin", "pickle");
    write("in/.gitattributes", "hidden");
    write("in/optimizer.pt", "pickle");
    buffer_ = {"mask", SafeType::kI64, {3}, bytes_of(std::vector<std::int64_t>{1, -2, 3})};
    freq_ = {"rope.inv_freq", SafeType::kF32, {2}, bytes_of(std::vector<float>{0.1f, 0.2f})};
    q_ = counted(40 * 16, 4);
    q_[7] = 0.1f;  // no bf16 value
    write_safetensors(path("in/model.safetensors"),
                      {buffer_, given_fp32("norm.weight", {16}, counted(16, 2)),
                       given_fp32("q.weight", {40, 16}, q_), freq_,
                       given_bf16("embed.weight", {64, 16}, counted(1024, 1)),
                       given_bf16("lm_head.weight", {64, 16}, counted(1024, 1))});
    spec_.family = "llama";
    spec_.pieces = {
        spec_piece("table", {spec_tensor("embed.weight", {64, 16})}),
        spec_piece("layer", {spec_tensor("norm.weight", {16}), spec_tensor("q.weight", {40, 16})})};
    rules_ = {{{"embed.weight", "lm_head.weight"}}, {"*.inv_freq", "mask"}, false};
  }

  // Each trained value is source + 1; checks the ranges that are asked for.
  ExportResult run(const ExportOptions& options, const std::string& to = "out") {
    const HfFolder source = HfFolder::open(path("in"));
    const TensorMap map = check_tensors(spec_, source, rules_);
    const auto weights = folder_weights(source, map);
    const ExportValues values = [&](int piece, std::int64_t first, std::int64_t count, void* into) {
      EXPECT_TRUE(spec_.pieces[piece].trainable);
      EXPECT_LE(count, kExportChunk);
      std::vector<float> master(count);
      weights->read_piece(spec_.pieces[piece], first, count, master.data());
      for (std::int64_t i = 0; i < count; ++i) {
        if (options.type == DType::kFloat32)
          static_cast<float*>(into)[i] = master[i] + 1;
        else
          static_cast<std::uint16_t*>(into)[i] = to_bf16_away(master[i] + 1);
      }
    };
    return export_hf(spec_, {&source, &map, ""}, values, path(to), options);
  }
  static std::vector<float> plus_one(std::vector<float> values) {
    for (float& value : values) value += 1;
    return values;
  }
  std::vector<float> read_tensor(const HfFolder& folder, const std::string& name) {
    std::vector<float> values(folder.find(name)->elements);
    folder.read_fp32(name, 0, static_cast<std::int64_t>(values.size()), values.data());
    return values;
  }
  std::string read_raw(const HfFolder& folder, const std::string& name) {
    std::string bytes(folder.find(name)->end - folder.find(name)->begin, ' ');
    folder.read_bytes(name, 0, bytes.size(), bytes.data());
    return bytes;
  }
  std::vector<std::string> sorted_names(const HfFolder& folder) {
    std::vector<std::string> names = folder.names();
    std::sort(names.begin(), names.end());
    return names;
  }

  ModelSpec spec_;
  TensorRules rules_;
  Given buffer_, freq_;
  std::vector<float> q_;
};

// Field cases 033 and 034.
TEST_F(HfExportTest, NamesShapesAndBuffersComeThrough) {
  const ExportResult result = run({DType::kFloat32, kDefaultShardBytes});
  const HfFolder out = HfFolder::open(path("out"));
  EXPECT_EQ(sorted_names(out), (std::vector<std::string>{"embed.weight", "mask", "norm.weight",
                                                         "q.weight", "rope.inv_freq"}));
  EXPECT_EQ(out.find("q.weight")->shape, (std::vector<std::int64_t>{40, 16}));
  EXPECT_EQ(out.find("q.weight")->type, SafeType::kF32);
  EXPECT_EQ(out.find("mask")->type, SafeType::kI64);
  EXPECT_EQ(read_raw(out, "mask"), buffer_.data);
  EXPECT_EQ(read_raw(out, "rope.inv_freq"), freq_.data);
  EXPECT_EQ(read_tensor(out, "embed.weight"), plus_one(counted(1024, 1)));
  EXPECT_EQ(read_tensor(out, "q.weight"), plus_one(q_));
  EXPECT_EQ(result.tensors, 5);
  EXPECT_EQ(result.files, 1);
  EXPECT_EQ(result.weight_bytes, (1024 + 16 + 640 + 2) * 4u + 24u);
  EXPECT_EQ(result.path, path("out"));
  EXPECT_EQ(out.files()[0].metadata().at("format"), "pt");
}

// Field case 035.
TEST_F(HfExportTest, Bf16IsTheOnlyFloatTypeBesidesBuffers) {
  run({DType::kBFloat16, kDefaultShardBytes});
  const HfFolder out = HfFolder::open(path("out"));
  EXPECT_EQ(out.find("embed.weight")->type, SafeType::kBF16);
  EXPECT_EQ(out.find("norm.weight")->type, SafeType::kBF16);
  EXPECT_EQ(out.find("rope.inv_freq")->type, SafeType::kF32);
  EXPECT_EQ(read_tensor(out, "norm.weight"), plus_one(counted(16, 2)));
}

TEST_F(HfExportTest, FrozenTensorsEqualTheSource) {
  apply_freeze(spec_, {"q.*", "embed.*"});
  run({DType::kFloat32, kDefaultShardBytes});
  const HfFolder fp32 = HfFolder::open(path("out"));
  EXPECT_EQ(read_tensor(fp32, "q.weight"), q_);
  EXPECT_EQ(read_tensor(fp32, "embed.weight"), counted(1024, 1));
  EXPECT_EQ(read_tensor(fp32, "norm.weight"), plus_one(counted(16, 2)));
  EXPECT_EQ(fp32.find("embed.weight")->type, SafeType::kF32);
  run({DType::kBFloat16, kDefaultShardBytes}, "half");
  const HfFolder half = HfFolder::open(path("half"));
  std::vector<float> rounded = q_;
  for (float& value : rounded) value = from_bf16(to_bf16_even(value));
  EXPECT_EQ(read_tensor(half, "q.weight"), rounded);
  EXPECT_EQ(half.find("q.weight")->type, SafeType::kBF16);
  EXPECT_EQ(read_tensor(half, "embed.weight"), counted(1024, 1));
}

TEST_F(HfExportTest, AnUntiedModelKeepsBoth) {
  spec_.pieces.push_back(spec_piece("head", {spec_tensor("lm_head.weight", {64, 16})}));
  rules_.tied.clear();
  run({DType::kBFloat16, kDefaultShardBytes});
  const HfFolder out = HfFolder::open(path("out"));
  EXPECT_TRUE(out.has("lm_head.weight"));
  EXPECT_TRUE(out.has("embed.weight"));
}

TEST_F(HfExportTest, NamesAreTheSourceFoldersNames) {
  for (PieceSpec& piece : spec_.pieces) {
    for (TensorSpec& tensor : piece.tensors) tensor.name = "model." + tensor.name;
  }
  rules_.tied[0].name = "model.embed.weight";
  rules_.optional_prefix = "model.";
  run({DType::kFloat32, 0});
  EXPECT_EQ(sorted_names(HfFolder::open(path("out"))),
            (std::vector<std::string>{"embed.weight", "mask", "norm.weight", "q.weight",
                                      "rope.inv_freq"}));
}

TEST_F(HfExportTest, ShardsWithAnIndex) {
  const ExportResult result = run({DType::kBFloat16, 2100});
  EXPECT_EQ(result.files, 2);
  EXPECT_TRUE(std::filesystem::exists(path("out/model-00001-of-00002.safetensors")));
  EXPECT_FALSE(std::filesystem::exists(path("out/model.safetensors")));
  const HfFolder out = HfFolder::open(path("out"));
  EXPECT_TRUE(out.sharded());
  EXPECT_EQ(out.names().size(), 5u);
  expect_has(read("out/model.safetensors.index.json"),
             "\"total_size\": " + std::to_string(result.weight_bytes));
}

TEST_F(HfExportTest, CopiesTheRightFiles) {
  run({DType::kFloat32, kDefaultShardBytes});
  EXPECT_EQ(read("out/tokenizer.json"), read("in/tokenizer.json"));
  EXPECT_EQ(read("out/additional_chat_templates/tools.jinja"), "{{ x }}");
  for (const char* name : {"pytorch_model.bin", "optimizer.pt", ".gitattributes"}) {
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out" / name)) << name;
  }
}

TEST_F(HfExportTest, ConfigChangesItsTypeOnly) {
  run({DType::kFloat32, kDefaultShardBytes});
  EXPECT_EQ(read("out/config.json"),
            "{\n  \"model_type\": \"llama\",\n  \"torch_dtype\": \"float32\",\n  \"rms_norm_eps\": "
            "1e-05,\n"
            "  \"head_dim\": 16,\n  \"zeta\": 1,\n  \"alpha\": 2\n}\n");
  write("in/config.json", R"({"dtype": "float32"})");
  run({DType::kBFloat16, kDefaultShardBytes}, "modern");
  EXPECT_EQ(read("modern/config.json"), "{\n  \"dtype\": \"bfloat16\"\n}\n");
  write("in/config.json", "{}");
  run({DType::kBFloat16, kDefaultShardBytes}, "none");
  EXPECT_EQ(read("none/config.json"), "{\n  \"torch_dtype\": \"bfloat16\"\n}\n");
}

TEST_F(HfExportTest, RandomInitNeedsNoSourceFolder) {
  spec_.pieces[1].tensors[1].init_std = 0.02;
  const auto weights = random_weights(3);
  const ExportValues values = [&](int piece, std::int64_t first, std::int64_t count, void* into) {
    weights->read_piece(spec_.pieces[piece], first, count, static_cast<float*>(into));
  };
  export_hf(spec_, {nullptr, nullptr, R"({"model_type": "llama"})"}, values, path("out"),
            {DType::kFloat32, 0});
  const HfFolder out = HfFolder::open(path("out"));
  EXPECT_EQ(out.names().size(), 3u);
  EXPECT_NE(read_tensor(out, "q.weight")[0], 0);
  expect_has(out.config_text(), "\"torch_dtype\": \"float32\"");
}

// 96 MiB of weights through a few MiB of memory.
TEST_F(HfExportTest, MemoryDoesNotGrowWithTheModel) {
  ModelSpec spec;
  spec.pieces = {spec_piece("big", {spec_tensor("w", {24, 1 << 20})})};
  const ExportValues values = [](int, std::int64_t first, std::int64_t count, void* into) {
    std::fill_n(static_cast<float*>(into), count, static_cast<float>(first >> 20));
  };
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts from here
  const Bytes before = resident_bytes();
  export_hf(spec, {nullptr, nullptr, "{}"}, values, path("out"), {DType::kFloat32, 0});
  EXPECT_LT(peak_resident_bytes(), before + 16 * kMiB);
  const HfFolder out = HfFolder::open(path("out"));
  float last = 0;
  out.read_fp32("w", 24 * kMiB - 1, 1, &last);
  EXPECT_EQ(last, 23);
}

TEST_F(HfExportTest, RefusesAFolderThatHoldsSomething) {
  write("out/keep", "mine");
  expect_has(error_of([&] {
               run({DType::kFloat32, 0});
             }),
             "cannot export to " + path("out") + ": it exists and is not an empty folder");
  EXPECT_EQ(read("out/keep"), "mine");
  expect_has(error_of([&] { run({DType::kFloat32, 0}, "in"); }), "cannot export to");
  std::filesystem::create_directories(path("empty"));
  run({DType::kFloat32, 0}, "empty/");
  EXPECT_TRUE(std::filesystem::exists(path("empty/config.json")));
}

TEST_F(HfExportTest, NothingAppearsWhenItFails) {
  const HfFolder source = HfFolder::open(path("in"));
  const TensorMap map = check_tensors(spec_, source, rules_);
  const ExportValues fails = [](int, std::int64_t, std::int64_t, void*) {
    throw Error(ErrorKind::kFailed, "drive gone");
  };
  error_of(
      [&] {
        export_hf(spec_, {&source, &map, ""}, fails, path("out"), {});
      },
      ErrorKind::kFailed);
  EXPECT_FALSE(std::filesystem::exists(path("out")));
  EXPECT_FALSE(std::filesystem::exists(path("out.partial")));
}

TEST_F(HfExportTest, ClearsWhatAnInterruptedExportLeft) {
  write("out.partial/model-00007-of-00009.safetensors", "half");
  run({DType::kFloat32, 0});
  EXPECT_FALSE(std::filesystem::exists(path("out.partial")));
  EXPECT_FALSE(std::filesystem::exists(path("out/model-00007-of-00009.safetensors")));
}

TEST_F(HfExportTest, SaysWhatTheDiskLacks) {
  spec_.pieces = {spec_piece("huge", {spec_tensor("w", {kMostElements / 4096, 4096})})};
  const ExportValues values = [](int, std::int64_t, std::int64_t, void*) {
    FAIL() << "nothing should be written";
  };
  const std::string text = error_of(
      [&] {
        export_hf(spec_, {nullptr, nullptr, "{}"}, values, path("out"), {DType::kFloat32, 0});
      },
      ErrorKind::kDoesNotFit);
  expect_has(text, "needs 1.00 PiB but only");
  EXPECT_FALSE(std::filesystem::exists(path("out.partial")));
}

}  // namespace
}  // namespace zinf::model
