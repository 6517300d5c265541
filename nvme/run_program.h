// Runs another program to its end and reads what it says. No shell: arguments are taken as they
// are.
#pragma once

#include <string>
#include <vector>

namespace zinf::nvme {

struct ProgramOutput {
  bool started = false;  // false: no such program
  int status = -1;       // its exit status; 128 + signal where one ended it
  std::string text;      // what it wrote to stdout; stderr goes nowhere
};

// arguments[0] is looked for in PATH. `environment`: NAME=VALUE in addition to ours.
ProgramOutput run_program(const std::vector<std::string>& arguments,
                          const std::vector<std::string>& environment);

}  // namespace zinf::nvme
