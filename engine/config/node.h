// A YAML document as a tree that remembers lines and keeps the order of keys. yaml-cpp stays behind
// node.cc.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace zinf::config {

struct Node {
  enum class Type { kNull, kScalar, kList, kMap };
  struct Entry;

  Type type = Type::kNull;
  std::string text;     // kScalar
  bool quoted = false;  // kScalar: written with quotes, so a text even if it looks like a number
  int line = 0;         // 1-based
  std::vector<Node> items;
  std::vector<Entry> entries;

  bool is_scalar() const { return type == Type::kScalar; }
  bool is_map() const { return type == Type::kMap; }
  bool is_list() const { return type == Type::kList; }
  bool is_null() const { return type == Type::kNull; }
};

struct Node::Entry {
  std::string key;
  int line = 0;
  Node value;
};

// Throws Error(kUsage) "FILE:LINE: ..." for anything that is not one YAML document without
// duplicate keys, tabs as indentation, tags, anchors, or bytes outside UTF-8. An empty text gives a
// null node.
Node parse_yaml(const std::string& text, const std::string& file);

// A node as short text for messages: the scalar, "a list", "a section", "nothing".
std::string shown(const Node& node);

}  // namespace zinf::config
