#include "engine/base/flat_yaml.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"

namespace zinf {
namespace {

TEST(FlatYaml, KeysValuesQuotesAndComments) {
  const auto values =
      parse_flat_yaml("# head\n\na: 1 # one\n  b:  \"x # y\"  # text\r\nc: [1, 2]\n", "f", "");
  ASSERT_EQ(values.size(), 3u);
  EXPECT_EQ(values.at("a").text, "1");
  EXPECT_EQ(values.at("a").line, 3);
  EXPECT_EQ(values.at("b").text, "\"x # y\"");
  EXPECT_EQ(values.at("c").text, "[1, 2]");
}

TEST(FlatYaml, RefusesByLine) {
  const auto error = [](const char* text) {
    try {
      parse_flat_yaml(text, "f", "the hint");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(error("a: 1\nb\n"), "f:2: expected \"key: value\", found \"b\"\n  hint: the hint");
  EXPECT_EQ(error("a: 1\nb: 2\na: 3\n"), "f:3: key a again, first in line 1\n  hint: the hint");
}

TEST(FlatYaml, TextsAndNumbersComeBack) {
  std::string text;
  EXPECT_TRUE(unquote_text(quoted_text("Model #1: fast"), text));
  EXPECT_EQ(text, "Model #1: fast");
  EXPECT_EQ(quoted_text("a\"b\\c\n"), "\"a?b?c?\"");
  EXPECT_FALSE(unquote_text("bare", text));
  double number = 0;
  EXPECT_TRUE(parse_flat_number("2.5e3", number));
  EXPECT_EQ(number, 2500);
  EXPECT_FALSE(parse_flat_number("-1", number));
  EXPECT_FALSE(parse_flat_number("1 GB", number));
  int whole = 0;
  EXPECT_FALSE(parse_flat_number("1.5", whole));
}

}  // namespace
}  // namespace zinf
