#include "engine/model/hub_cache.h"

#include <optional>

#include "tests/model_files/model_files_fixture.h"

namespace zinf::model {
namespace {

class HubCacheTest : public ModelFilesTest {
 protected:
  void SetUp() override {
    ModelFilesTest::SetUp();
    for (const char* name :
         {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"}) {
      const char* value = std::getenv(name);
      before_.emplace_back(name, value == nullptr ? std::optional<std::string>() : value);
      ::unsetenv(name);
    }
    ::setenv("HF_HOME", folder_.c_str(), 1);
  }
  void TearDown() override {
    for (const auto& [name, value] : before_) {
      value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
    }
    ModelFilesTest::TearDown();
  }

  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

TEST_F(HubCacheTest, FollowsRefsMain) {
  write("hub/models--org--tiny/refs/main", "abc123\n");
  write("hub/models--org--tiny/snapshots/abc123/config.json", "{}");
  write("hub/models--org--tiny/snapshots/older/config.json", "{}");
  EXPECT_EQ(resolve_model_path("org/tiny"), path("hub/models--org--tiny/snapshots/abc123"));
}

TEST_F(HubCacheTest, TakesTheOnlySnapshotWithoutRefs) {
  write("hub/models--gpt2/snapshots/abc/config.json", "{}");
  EXPECT_EQ(resolve_model_path("gpt2"), path("hub/models--gpt2/snapshots/abc"));
  write("hub/models--gpt2/snapshots/def/config.json", "{}");
  expect_has(error_of([] { resolve_model_path("gpt2"); }), "hf download gpt2");
}

TEST_F(HubCacheTest, ARefCannotLeaveTheCache) {
  write("hub/models--org--tiny/refs/main", "../../../secret");
  write("secret/config.json", "{}");
  write("hub/models--org--tiny/snapshots/a/x", "");
  write("hub/models--org--tiny/snapshots/b/x", "");
  error_of([] { resolve_model_path("org/tiny"); });
}

TEST_F(HubCacheTest, EveryPlaceInItsOrder) {
  for (const char* place :
       {"one", "two/hub", "three/huggingface/hub", "four/.cache/huggingface/hub"}) {
    write(std::string(place) + "/models--m/snapshots/a/config.json", "{}");
  }
  ::setenv("HOME", path("four").c_str(), 1);
  ::unsetenv("HF_HOME");
  EXPECT_EQ(resolve_model_path("m"), path("four/.cache/huggingface/hub/models--m/snapshots/a"));
  ::setenv("XDG_CACHE_HOME", path("three").c_str(), 1);
  EXPECT_EQ(resolve_model_path("m"), path("three/huggingface/hub/models--m/snapshots/a"));
  ::setenv("HF_HOME", path("two").c_str(), 1);
  EXPECT_EQ(resolve_model_path("m"), path("two/hub/models--m/snapshots/a"));
  ::setenv("HF_HUB_CACHE", path("one").c_str(), 1);
  EXPECT_EQ(resolve_model_path("m"), path("one/models--m/snapshots/a"));
}

TEST_F(HubCacheTest, PrintsTheDownloadCommand) {
  const std::string text = error_of([] { resolve_model_path("HuggingFaceTB/SmolLM2-135M"); });
  expect_has(text,
             "no folder HuggingFaceTB/SmolLM2-135M, and no model of that name in " + path("hub"));
  expect_has(text, "hf download HuggingFaceTB/SmolLM2-135M ");
}

TEST_F(HubCacheTest, FoldersWinAndPathsAreNoIds) {
  write("hub/models--mine/snapshots/a/config.json", "{}");
  write("mine/config.json", "{}");
  EXPECT_EQ(resolve_model_path("mine", folder_.string()), path("mine"));
  EXPECT_EQ(resolve_model_path(path("mine")), path("mine"));
  expect_has(error_of([&] { resolve_model_path(path("none")); }),
             path("none") + ": no such folder");
  expect_has(error_of([&] { resolve_model_path("./none", folder_.string()); }),
             "none: no such folder");
  expect_has(error_of([&] { resolve_model_path("a/b/c"); }), "a/b/c: no such folder");
  expect_has(error_of([&] { resolve_model_path(path("mine/config.json")); }),
             "is a file; expected a model folder");
  expect_has(error_of([&] { resolve_model_path(""); }), "model.path is empty");
}

}  // namespace
}  // namespace zinf::model
