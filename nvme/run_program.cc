#include "nvme/run_program.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

namespace zinf::nvme {

namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  return result;
}

}  // namespace

ProgramOutput run_program(const std::vector<std::string>& arguments,
                          const std::vector<std::string>& environment) {
  ProgramOutput output;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return output;
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::vector<char*> argv = pointers(arguments), envp = pointers(environment);
  argv.push_back(nullptr);
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view given = *variable;
    const std::string_view name = given.substr(0, given.find('=') + 1);
    const bool ours = std::any_of(environment.begin(), environment.end(),
                                  [&](const std::string& own) { return own.starts_with(name); });
    if (!ours) envp.push_back(*variable);
  }
  envp.push_back(nullptr);
  pid_t child = -1;
  output.started =
      ::posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), envp.data()) == 0;
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (output.started) {
    char buffer[4096];
    for (ssize_t got;
         (got = ::read(ends[0], buffer, sizeof buffer)) > 0 || (got < 0 && errno == EINTR);)
      if (got > 0) output.text.append(buffer, static_cast<std::size_t>(got));
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    output.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  ::close(ends[0]);
  return output;
}

}  // namespace zinf::nvme
