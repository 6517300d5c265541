#include "engine/config/node.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <charconv>
#include <sstream>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/config/text.h"

namespace zinf::config {

namespace {

// A config of more nodes than this is a mistake, not a config.
constexpr int kMostNodes = 100000;
constexpr int kMostDepth = 64;

[[noreturn]] void fail(const std::string& file, int line, const std::string& what,
                       const std::string& hint = "") {
  throw Error(ErrorKind::kUsage, str(file, ":", line, ": ", what), hint);
}

// Builds the tree from yaml-cpp's events. Its own Node would keep the first of two equal keys and
// say nothing.
class Builder : public YAML::EventHandler {
 public:
  Builder(const std::string& text, const std::string& file) : text_(text), file_(file) {}

  Node take() {
    if (bad_key_line_)
      fail(file_, bad_key_line_, "a key must be a plain text, found a list or a section");
    return std::move(root_);
  }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnAnchor(const YAML::Mark& mark, const std::string& name) override {
    fail(file_, mark.line + 1, str("anchor '&", name, "' is not supported"), "write the value out");
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    fail(file_, mark.line + 1, "an alias ('*name') is not supported", "write the value out");
  }
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    add(make(mark, Node::Type::kNull));
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                const std::string& value) override {
    check_tag(mark, tag);
    Node node = make(mark, Node::Type::kScalar);
    node.text = value;
    node.quoted = tag == "!";
    if (node.quoted) check_closed(mark);
    add(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, Node::Type::kList);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, Node::Type::kMap);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Frame {
    Node node;
    std::string key;  // of a map: the key whose value comes next
    int key_line = 0;
    bool has_key = false;
  };

  Node make(const YAML::Mark& mark, Node::Type type) {
    if (++nodes_ > kMostNodes) fail(file_, mark.line + 1, str("more than ", kMostNodes, " values"));
    Node node;
    node.type = type;
    node.line = mark.line + 1;
    return node;
  }

  void check_tag(const YAML::Mark& mark, const std::string& tag) {
    if (tag.empty() || tag == "?" || tag == "!") return;
    fail(file_, mark.line + 1, str("YAML tag '", tag, "' is not supported"), "remove it");
  }

  void open(const YAML::Mark& mark, const std::string& tag, Node::Type type) {
    check_tag(mark, tag);
    if (stack_.size() >= kMostDepth)
      fail(file_, mark.line + 1, str("nested deeper than ", kMostDepth, " levels"));
    Frame frame;
    frame.node = make(mark, type);
    stack_.push_back(std::move(frame));
  }

  void close() {
    Node node = std::move(stack_.back().node);
    stack_.pop_back();
    add(std::move(node));
  }

  void add(Node node) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& top = stack_.back();
    if (top.node.is_list()) {
      top.node.items.push_back(std::move(node));
    } else if (!top.has_key) {
      take_key(top, node);
    } else {
      top.node.entries.push_back({top.key, top.key_line, std::move(node)});
      top.has_key = false;
    }
  }

  void take_key(Frame& top, const Node& node) {
    top.key = node.text;
    top.key_line = node.line;
    top.has_key = true;
    if (!node.is_scalar()) {
      // Told at the end: yaml-cpp also shows an unclosed bracket this way before it throws.
      if (!bad_key_line_) bad_key_line_ = node.line;
      return;
    }
    for (const Node::Entry& entry : top.node.entries) {
      if (entry.key != node.text) continue;
      fail(file_, node.line,
           str("duplicate key '", clipped(node.text), "': first given in line ", entry.line),
           "keep one of the two");
    }
  }

  // yaml-cpp takes an unclosed quote at the end of a file for a text that ends there.
  void check_closed(const YAML::Mark& mark) {
    std::size_t at = static_cast<std::size_t>(mark.pos);
    if (at >= text_.size() || (text_[at] != '"' && text_[at] != '\'')) return;
    const char quote = text_[at];
    for (++at; at < text_.size(); ++at) {
      if (quote == '"' && text_[at] == '\\') {
        ++at;
      } else if (text_[at] == quote) {
        if (quote == '"' || at + 1 >= text_.size() || text_[at + 1] != quote) return;
        ++at;
      }
    }
    fail(file_, mark.line + 1, str("not valid YAML: this quote (", quote, ") is never closed"));
  }

  const std::string& text_;
  const std::string& file_;
  Node root_;
  std::vector<Frame> stack_;
  int nodes_ = 0;
  int bad_key_line_ = 0;
};

// Line of the first byte that is not UTF-8, 0 if all is well.
int bad_utf8_line(const std::string& text) {
  int line = 1;
  for (std::size_t i = 0; i < text.size();) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    if (c == '\n') ++line;
    const int more = c < 0x80                ? 0
                     : c >= 0xC2 && c < 0xE0 ? 1
                     : c >= 0xE0 && c < 0xF0 ? 2
                     : c >= 0xF0 && c < 0xF5 ? 3
                                             : -1;
    if (more < 0 || i + static_cast<std::size_t>(more) >= text.size() + (more == 0)) return line;
    for (int k = 1; k <= more; ++k)
      if ((static_cast<unsigned char>(text[i + static_cast<std::size_t>(k)]) & 0xC0) != 0x80)
        return line;
    if (c == 0) return line;
    i += static_cast<std::size_t>(more) + 1;
  }
  return 0;
}

struct Indent {
  int line = 0;
  bool starts_with_tab = false;
};

// The first line whose indentation holds a tab, from `first` on.
Indent tab_indent(const std::string& text, int first) {
  std::istringstream in(text);
  std::string row;
  for (int line = 1; std::getline(in, row); ++line) {
    const std::size_t end = row.find_first_not_of(" \t\r");
    if (line < first || end == std::string::npos || row[end] == '#') continue;
    if (row.substr(0, end).find('\t') != std::string::npos) return {line, row[0] == '\t'};
  }
  return {};
}

bool looks_like_json(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string::npos && (text[first] == '{' || text[first] == '[');
}

[[noreturn]] void fail_tab(const std::string& file, int line) {
  fail(file, line, "a tab in the indentation; YAML allows only spaces",
       "replace the tab by spaces");
}

// JSON may be indented with tabs; yaml-cpp does not always agree. Inside quotes JSON has no raw
// tab.
std::string without_tabs(std::string text) {
  for (char& c : text)
    if (c == '\t') c = ' ';
  return text;
}

std::string utf8(unsigned code) {  // of 0x10000 and above
  return {static_cast<char>(0xF0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 0x3F)),
          static_cast<char>(0x80 | (code >> 6 & 0x3F)), static_cast<char>(0x80 | (code & 0x3F))};
}

// JSON writes characters beyond 16 bits as two escapes ("\ud83d\ude00"), which YAML does not know.
std::string join_surrogates(const std::string& text) {
  const auto unit = [&](std::size_t at) -> unsigned {
    if (at + 6 > text.size() || text[at] != '\\' || text[at + 1] != 'u') return 0;
    unsigned value = 0;
    const auto [end, code] = std::from_chars(&text[at + 2], &text[at + 2] + 4, value, 16);
    return code == std::errc() && end == &text[at + 2] + 4 ? value : 0;
  };
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const unsigned high = unit(at);
    const unsigned low = high >= 0xD800 && high < 0xDC00 ? unit(at + 6) : 0;
    if (low >= 0xDC00 && low < 0xE000) {
      out += utf8(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00));
      at += 12;
    } else {
      const std::size_t length =
          text[at] == '\\' && at + 1 < text.size() ? 2 : 1;  // "\\\\" is no escape's start
      out.append(text, at, length);
      at += length;
    }
  }
  return out;
}

Node parse_events(const std::string& text, const std::string& file) {
  std::istringstream in(text);
  YAML::Parser parser(in);
  Builder builder(text, file);
  if (!parser.HandleNextDocument(builder)) return {};
  Node root = builder.take();
  Builder second(text, file);
  if (parser.HandleNextDocument(second))
    fail(file, second.take().line,
         "the document has ended before this line; a config is one document",
         "remove a '---', or check the indentation");
  return root;
}

}  // namespace

Node parse_yaml(const std::string& given, const std::string& file) {
  const std::string text =
      given.substr(given.starts_with("\xEF\xBB\xBF") ? 3 : 0);  // byte order mark
  if (const int line = bad_utf8_line(text))
    fail(file, line, "not UTF-8 text", "save the file as UTF-8");
  const bool json = looks_like_json(text);
  if (!json) {
    const Indent tab = tab_indent(text, 1);
    if (tab.starts_with_tab) fail_tab(file, tab.line);
  }
  const std::string json_or_text = json ? join_surrogates(without_tabs(text)) : text;
  try {
    return parse_events(json_or_text, file);
  } catch (const Error&) {
    throw;
  } catch (const YAML::Exception& error) {
    const int line = error.mark.line + 1;
    if (const Indent tab = tab_indent(text, 1); !json && tab.line) fail_tab(file, tab.line);
    fail(file, line > 0 ? line : 1, str("not valid YAML: ", error.msg),
         "often an unclosed bracket or quote, or a missing space after ':'");
  } catch (const std::exception& error) {
    fail(file, 1, str("not valid YAML: ", error.what()));
  }
}

std::string shown(const Node& node) {
  switch (node.type) {
    case Node::Type::kNull:
      return "nothing";
    case Node::Type::kList:
      return "a list";
    case Node::Type::kMap:
      return "a section";
    case Node::Type::kScalar:
      break;
  }
  return str("'", clipped(node.text), "'");
}

}  // namespace zinf::config
