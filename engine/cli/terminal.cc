#include "engine/cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "engine/base/error.h"
#include "engine/base/str.h"

namespace zinf::cli {

ProgressLine::ProgressLine() {
  const char* kind = std::getenv("TERM");
  winsize size{};
  terminal_ = ::isatty(2) == 1 && kind != nullptr && std::string_view(kind) != "dumb";
  if (terminal_ && ::ioctl(2, TIOCGWINSZ, &size) == 0) columns_ = size.ws_col;
}

void ProgressLine::show(std::string_view text) {
  if (!terminal_) return;
  if (columns_ > 1) text = text.substr(0, columns_ - 1);
  std::fprintf(stderr, "\r%.*s\x1b[K", static_cast<int>(text.size()), text.data());
  std::fflush(stderr);
  shown_ = true;
}

void ProgressLine::clear() {
  if (!shown_) return;
  std::fprintf(stderr, "\r\x1b[K");
  std::fflush(stderr);
  shown_ = false;
}

std::string right(std::string_view text, std::size_t width) {
  return std::string(text.size() < width ? width - text.size() : 0, ' ') + std::string(text);
}

std::string left(std::string_view text, std::size_t width) {
  return std::string(text) + std::string(text.size() < width ? width - text.size() : 0, ' ');
}

std::string short_number(double value) {
  const double size = std::abs(value);
  const int decimals = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 || size == 0 ? 2 : 3;
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

Bytes size_option(const std::string& name, const std::string& text) {
  const std::optional<Bytes> bytes = parse_bytes(text);
  if (!bytes)
    throw Error(ErrorKind::kUsage,
                str(name, ": expected a size such as 24GiB, found \"", text, "\""));
  return *bytes;
}

}  // namespace zinf::cli
