#include "engine/config/node.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"

namespace zinf::config {
namespace {

std::string failure(const std::string& text) {
  try {
    parse_yaml(text, "c.yaml");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "no error";
}

TEST(Node, KeepsOrderLinesAndQuotes) {
  const Node root = parse_yaml("b: 1\na:\n  - x\n  - \"2\"\n", "c.yaml");
  ASSERT_EQ(root.entries.size(), 2u);
  EXPECT_EQ(root.entries[0].key, "b");
  EXPECT_EQ(root.entries[1].line, 2);
  EXPECT_EQ(root.entries[1].value.items[1].line, 4);
  EXPECT_TRUE(root.entries[1].value.items[1].quoted);
  EXPECT_FALSE(root.entries[1].value.items[0].quoted);
}

TEST(Node, DuplicateKeysAtAnyDepth) {
  EXPECT_EQ(failure("a: 1\nb: 2\na: 3\n"),
            "c.yaml:3: duplicate key 'a': first given in line 1\n  hint: keep one of the two");
  EXPECT_EQ(failure("{\"x\": {\"y\": 1,\n \"y\": 1}}"),
            "c.yaml:2: duplicate key 'y': first given in line 1\n  hint: keep one of the two");
}

TEST(Node, TabIndent) {
  const std::string message =
      ": a tab in the indentation; YAML allows only spaces\n  hint: replace the tab by spaces";
  EXPECT_EQ(failure("train:\n\tsteps: 1\n"), "c.yaml:2" + message);
  EXPECT_EQ(failure("train:\n  a: 1\n  \tsteps: 1\n"), "c.yaml:3" + message);
  // JSON may be indented with tabs.
  EXPECT_EQ(parse_yaml("{\n\t\"a\": 1\n}", "c.json").entries.size(), 1u);
}

TEST(Node, BrokenYamlNamesTheLine) {
  EXPECT_TRUE(failure("a: [1, 2\nb: 3\n").starts_with("c.yaml:2: not valid YAML: "))
      << failure("a: [1, 2\nb: 3\n");
  EXPECT_EQ(failure("x: 1\na: \"open\nb: 3\n"),
            "c.yaml:2: not valid YAML: this quote (\") is never closed");
  EXPECT_EQ(failure("? [a]\n: 1\n"),
            "c.yaml:1: a key must be a plain text, found a list or a section");
  EXPECT_TRUE(failure("{\"a\": 1,").starts_with("c.yaml:1: not valid YAML: "))
      << failure("{\"a\": 1,");
  EXPECT_EQ(failure("a: 1\n---\nb: 2\n"),
            "c.yaml:3: the document has ended before this line; a config is one document\n"
            "  hint: remove a '---', or check the indentation");
  EXPECT_EQ(failure("a: &x 1\nb: *x\n"),
            "c.yaml:1: anchor '&x' is not supported\n  hint: write the value out");
  EXPECT_EQ(
      failure("a: !!python/object 1\n"),
      "c.yaml:1: YAML tag 'tag:yaml.org,2002:python/object' is not supported\n  hint: remove it");
  EXPECT_EQ(failure("a: 1\nb: \xff\n"), "c.yaml:2: not UTF-8 text\n  hint: save the file as UTF-8");
  EXPECT_EQ(failure(std::string("a: \0 1", 6)),
            "c.yaml:1: not UTF-8 text\n  hint: save the file as UTF-8");
  EXPECT_TRUE(failure(std::string(100000, '[')).starts_with("c.yaml:1: "))
      << failure(std::string(100000, '['));
}

TEST(Node, WhatJsonWritersWrite) {
  const Node root = parse_yaml(
      "\xEF\xBB\xBF{\"a\":1,\"b\":[\"\\ud83d\\ude00\",\"\\/x\",\"\\\\ud83d\"],\"c\":{\"d\":null}}",
      "c.json");
  ASSERT_EQ(root.entries.size(), 3u);
  EXPECT_EQ(root.entries[0].value.text, "1");
  EXPECT_EQ(root.entries[1].value.items[0].text, "\xF0\x9F\x98\x80");
  EXPECT_EQ(root.entries[1].value.items[1].text, "/x");
  EXPECT_EQ(root.entries[1].value.items[2].text, "\\ud83d");
  EXPECT_TRUE(root.entries[2].value.entries[0].value.is_null());
}

TEST(Node, EmptyIsNull) {
  EXPECT_TRUE(parse_yaml("", "c.yaml").is_null());
  EXPECT_TRUE(parse_yaml("# only a comment\n", "c.yaml").is_null());
}

}  // namespace
}  // namespace zinf::config
