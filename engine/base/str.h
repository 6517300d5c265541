// str(a, b, ...): concatenation by operator<<. Usable beside LibTorch headers, which carry another
// fmt.
#pragma once

#include <sstream>
#include <string>

namespace zinf {

template <typename... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace zinf
