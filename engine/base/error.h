// The two kinds of error. What a user, a disk or a machine can cause is an Error: thrown where it
// is found, turned into an exit code in engine/cli. What only a bug can cause is a ZINF_CHECK:
// always on, no side effects.
#pragma once

#include <stdexcept>
#include <string>

namespace zinf {

enum class ErrorKind {
  kFailed = 1,      // the run failed: I/O error, non-finite loss, damaged file
  kUsage = 2,       // command line, config or input data is wrong
  kDoesNotFit = 3,  // a memory or disk budget is too small
};

// message: what was attempted, what was expected, what was found. hint: what to do next (may be
// empty).
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, const std::string& hint = "")
      : std::runtime_error(hint.empty() ? message : message + "\n  hint: " + hint), kind_(kind) {}
  ErrorKind kind() const { return kind_; }
  int exit_code() const { return static_cast<int>(kind_); }

 private:
  ErrorKind kind_;
};

[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const std::string& detail);

}  // namespace zinf

#define ZINF_CHECK(condition, detail)                                                 \
  do {                                                                                \
    if (!(condition)) ::zinf::check_failed(#condition, __FILE__, __LINE__, (detail)); \
  } while (0)
