// Random damage to good configs: load() gives a config or an Error(kUsage), nothing else.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/random.h"
#include "engine/config/load.h"
#include "engine/config/options.h"
#include "engine/config/reference.h"

namespace zinf::config {
namespace {

std::string read(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : key_(random_key(0xF022, seed)) {}
  std::uint64_t below(std::uint64_t bound) { return random_below(key_, next_++, bound); }

  void damage(std::string& text) {
    static const std::vector<std::string> kWords = {"auto",
                                                    "null",
                                                    "~",
                                                    "-1",
                                                    "0",
                                                    "1e400",
                                                    "nan",
                                                    "[",
                                                    "]",
                                                    "{",
                                                    "}",
                                                    ": ",
                                                    "\n",
                                                    "\t",
                                                    "\"",
                                                    "'",
                                                    "#",
                                                    "- ",
                                                    "&a ",
                                                    "*a ",
                                                    "!!int ",
                                                    "<<: ",
                                                    "? ",
                                                    "| ",
                                                    "> ",
                                                    "%YAML 1.2\n",
                                                    "---\n",
                                                    "...\n",
                                                    "010",
                                                    "5e8",
                                                    "99999999999999999999",
                                                    "\xff",
                                                    "\xc3",
                                                    "true",
                                                    "nvme",
                                                    "\\",
                                                    "\r\n",
                                                    std::string(1, '\0'),
                                                    "@",
                                                    "`",
                                                    ","};
    const std::size_t at = text.empty() ? 0 : below(text.size());
    switch (below(5)) {
      case 0:
        text.insert(at, kWords[below(kWords.size())]);
        break;
      case 1:
        text.erase(at, 1 + below(20));
        break;
      case 2:
        if (!text.empty()) text[at] = static_cast<char>(below(256));
        break;
      case 3:
        text.insert(at, text.substr(below(text.size() + 1), below(60)));
        break;
      default:
        text.resize(at);
        break;
    }
  }

 private:
  std::uint64_t key_;
  std::uint64_t next_ = 0;
};

void try_load(const std::string& text, const std::vector<std::string>& sets, int& good) {
  try {
    const LoadResult result = load_text(text, "/c/run.yaml", sets);
    ++good;
    // What loads can be written down and loads again to the same.
    EXPECT_EQ(load_text(resolved_yaml(result.config), "/d/config.yaml").config, result.config)
        << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
    EXPECT_FALSE(std::string(error.what()).empty());
  }
}

TEST(Fuzz, DamagedFiles) {
  const std::vector<std::string> files = {read("tests/config/data/full.yaml"),
                                          read("tests/config/data/ds_stage3_offload.json"),
                                          read("tests/config/data/ds_auto.json")};
  int good = 0;
  for (std::uint64_t seed = 0; seed < 6000; ++seed) {
    Mutator mutator(seed);
    std::string text = files[seed % files.size()];
    for (std::uint64_t i = 0, times = 1 + mutator.below(4); i < times; ++i) mutator.damage(text);
    SCOPED_TRACE(seed);
    try_load(text, {}, good);
    if (HasFailure()) return;
  }
  EXPECT_GT(good, 50);  // else only the parser was tried
}

TEST(Fuzz, DamagedSets) {
  int good = 0;
  for (std::uint64_t seed = 0; seed < 6000; ++seed) {
    Mutator mutator(seed + 1000000);
    const Option& option = options()[mutator.below(options().size())];
    std::string text = option.key + "=" + option.default_text;
    for (std::uint64_t i = 0, times = mutator.below(3); i < times; ++i) mutator.damage(text);
    SCOPED_TRACE(seed);
    try_load("train: {seed: 1}\n", {text}, good);
    if (HasFailure()) return;
  }
  EXPECT_GT(good, 500);
}

}  // namespace
}  // namespace zinf::config
