// Runs a program to its end, without a shell.
#pragma once

#include <string>
#include <vector>

namespace zinf {

struct ChildResult {
  int exit_code = 0;          // 128 + signal when a signal ended it
  std::string output;         // what it wrote to stdout
  std::string talk;           // the end of what it wrote to stderr, at most 64 KiB
  double silent_seconds = 0;  // it was ended because it had said nothing for so long
};

struct ChildOptions {
  std::string input = {};   // goes to its stdin
  bool relay_talk = false;  // its stderr is passed on as it comes
  double patience = 0;      // seconds that it may say nothing, then it is ended; 0: for ever
};

// The program inherits environment and working folder. Error(kFailed): it could not be started.
ChildResult run_child(const std::vector<std::string>& command, const ChildOptions& options = {});

}  // namespace zinf
