// str(a, b, ...): concatenation, each part as operator<< shows it. Usable beside LibTorch headers,
// which carry another fmt. Text and whole numbers need no stream: the planner names thousands of
// buffers a candidate.
#pragma once

#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

namespace zinf {

template <typename Part>
void append_to(std::string& text, const Part& part) {
  if constexpr (std::is_convertible_v<const Part&, std::string_view>) {
    text += std::string_view(part);
  } else if constexpr (std::is_same_v<Part, char>) {
    text += part;
  } else if constexpr (std::is_integral_v<Part> && sizeof(Part) > 1) {
    text += std::to_string(part);
  } else {
    std::ostringstream out;
    out << part;
    text += out.str();
  }
}

template <typename... Parts>
std::string str(const Parts&... parts) {
  std::string text;
  (append_to(text, parts), ...);
  return text;
}

}  // namespace zinf
