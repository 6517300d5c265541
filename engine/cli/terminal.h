// How commands talk: results go to stdout, talk to stderr, and a line is rewritten only on a
// terminal.
#pragma once

#include <string>
#include <string_view>

#include "engine/base/bytes.h"

namespace zinf::cli {

// One line on stderr that is rewritten in place; nothing at all where stderr is no terminal. Not
// thread-safe. Call clear() before anything else is written to stderr.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(std::string_view text);
  void clear();

 private:
  bool terminal_ = false;
  std::size_t columns_ = 0;
  bool shown_ = false;
};

// Pads on the left or on the right with blanks; longer text stays as it is.
std::string right(std::string_view text, std::size_t width);
std::string left(std::string_view text, std::size_t width);

// "3.21", "0.042", "12.8": three digits, for rates and times in tables.
std::string short_number(double value);

// The size given for a command-line option. Error(kUsage) names the option.
Bytes size_option(const std::string& name, const std::string& text);

}  // namespace zinf::cli
