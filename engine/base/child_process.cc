#include "engine/base/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/signals.h"
#include "engine/base/str.h"

namespace zinf {
namespace {

constexpr std::size_t kTalkKept = 64 * 1024;
constexpr int kPollMilliseconds = 200;  // how soon a stop request is seen
constexpr double kEndSeconds = 2;       // from SIGTERM to SIGKILL, for a child that hangs

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { close(); }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

struct Pipe {
  Descriptor ours, theirs;
};

// A pair of sockets rather than a pipe: writing to a child that has gone gives EPIPE without
// SIGPIPE.
Pipe make_pipe() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw Error(ErrorKind::kFailed, str("can't make a pipe: ", std::strerror(errno)));
  }
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

pid_t start(const std::vector<std::string>& command, const Pipe& in, const Pipe& out,
            const Pipe& talk) {
  std::vector<char*> arguments;
  for (const std::string& argument : command)
    arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.theirs.get(), 0);
  posix_spawn_file_actions_adddup2(&actions, out.theirs.get(), 1);
  posix_spawn_file_actions_adddup2(&actions, talk.theirs.get(), 2);
  // The trainer may block or handle signals; its child begins with the defaults.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t child = 0;
  const int code =
      ::posix_spawnp(&child, arguments[0], &actions, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (code != 0)
    throw Error(ErrorKind::kFailed, str("can't start ", command[0], ": ", std::strerror(code)));
  return child;
}

// Reads what is there; false when the other side has closed.
bool receive(int fd, std::string& to) {
  char buffer[16384];
  const ssize_t got = ::read(fd, buffer, sizeof buffer);
  if (got < 0 && errno == EINTR) return true;
  if (got <= 0) return false;
  to.append(buffer, got);
  return true;
}

void relay(const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t written = ::write(STDERR_FILENO, text.data() + at, text.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    at += written;
  }
}

// Until it has closed its outputs, or hangs; then it has been killed.
void converse(pid_t child, Pipe& in, Pipe& out, Pipe& talk, const ChildOptions& options,
              ChildResult& result) {
  const std::string& input = options.input;
  std::size_t sent = 0;
  bool told_to_stop = false;
  double last_word = now_seconds();
  if (input.empty()) ::shutdown(in.ours.get(), SHUT_WR);
  while (out.ours.get() >= 0 || talk.ours.get() >= 0) {
    pollfd fds[3] = {{out.ours.get(), POLLIN, 0},
                     {talk.ours.get(), POLLIN, 0},
                     {sent < input.size() ? in.ours.get() : -1, POLLOUT, 0}};
    const int ready = ::poll(fds, 3, kPollMilliseconds);
    if (stop_requested() != 0 && !std::exchange(told_to_stop, true)) ::kill(child, SIGTERM);
    const double silent = now_seconds() - last_word;
    if (ready <= 0 && options.patience > 0 && silent > options.patience) {
      if (result.silent_seconds == 0) {
        result.silent_seconds = silent;
        ::kill(child, SIGTERM);  // lets it tidy up
      } else if (silent > result.silent_seconds + kEndSeconds) {
        ::kill(child, SIGKILL);
        return;
      }
    }
    if (ready <= 0) continue;  // nothing yet, or interrupted by a signal
    if (fds[0].revents != 0 || fds[1].revents != 0) last_word = now_seconds();
    if (fds[0].revents != 0 && !receive(out.ours.get(), result.output)) out.ours.close();
    if (fds[1].revents != 0) {
      std::string said;
      if (!receive(talk.ours.get(), said)) talk.ours.close();
      if (options.relay_talk) relay(said);
      result.talk += said;
      if (result.talk.size() > kTalkKept) result.talk.erase(0, result.talk.size() - kTalkKept);
    }
    if (fds[2].revents != 0) {
      const ssize_t done = ::send(in.ours.get(), input.data() + sent, input.size() - sent,
                                  MSG_NOSIGNAL | MSG_DONTWAIT);
      if (done < 0 && errno != EAGAIN && errno != EINTR) sent = input.size();  // it doesn't read on
      if (done > 0) sent += done;
      if (sent == input.size()) ::shutdown(in.ours.get(), SHUT_WR);
    }
  }
}

}  // namespace

ChildResult run_child(const std::vector<std::string>& command, const ChildOptions& options) {
  Pipe in = make_pipe(), out = make_pipe(), talk = make_pipe();
  const pid_t child = start(command, in, out, talk);
  for (Pipe* pipe : {&in, &out, &talk}) pipe->theirs.close();
  ChildResult result;
  converse(child, in, out, talk, options, result);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR)
      throw Error(ErrorKind::kFailed, str("waiting for ", command[0], ": ", std::strerror(errno)));
  }
  result.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return result;
}

}  // namespace zinf
