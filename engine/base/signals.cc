#include "engine/base/signals.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/stall_watch.h"
#include "engine/base/str.h"

namespace zinf {

namespace {

constexpr std::array<int, 3> kSignals = {SIGINT, SIGTERM, SIGUSR1};
constexpr std::size_t kWordsSize = 256;

// A handler reaches nothing but statics; lock-free atomics are all it may touch.
static_assert(std::atomic<int>::is_always_lock_free);
std::atomic<int> first_signal{0};
std::atomic<int> wake_fd{-1};

// Two buffers: the one that is not published is filled, then published.
std::array<std::array<char, kWordsSize>, 2> words{};
std::atomic<int> words_index{0};

struct Installed {
  bool active = false;
  std::array<struct sigaction, kSignals.size()> previous{};
  int pipe[2] = {-1, -1};
  std::jthread grace;
};
std::mutex install_mutex;
Installed installed;

// Async-signal-safe.
void write_text(const char* text) {
  const ssize_t ignored = ::write(STDERR_FILENO, text, std::strlen(text));
  static_cast<void>(ignored);
}

const char* short_name(int signal) {
  switch (signal) {
    case SIGINT:
      return "SIGINT";
    case SIGTERM:
      return "SIGTERM";
    case SIGUSR1:
      return "SIGUSR1";
    case SIGHUP:
      return "SIGHUP";
    case SIGQUIT:
      return "SIGQUIT";
    case SIGKILL:
      return "SIGKILL";
    case SIGSEGV:
      return "SIGSEGV";
    case SIGBUS:
      return "SIGBUS";
    case SIGABRT:
      return "SIGABRT";
    default:
      return nullptr;
  }
}

[[noreturn]] void end_at_once(int signal, const char* why) {
  write_text("zinf: stopped by ");
  write_text(short_name(signal));
  write_text(why);
  const auto& said = words[static_cast<std::size_t>(words_index.load())];
  if (said[0] != '\0') {
    write_text(": ");
    write_text(said.data());
  }
  write_text("\n");
  ::_exit(128 + signal);
}

void on_signal(int signal) {
  const int saved = errno;
  int none = 0;
  if (!first_signal.compare_exchange_strong(none, signal))
    end_at_once(signal, ", the second signal");
  const int fd = wake_fd.load();
  const char byte = 's';
  if (fd >= 0) {
    const ssize_t ignored = ::write(fd, &byte, 1);
    static_cast<void>(ignored);
  }
  errno = saved;
}

// true: a byte came, or the other end was closed; false: the time is over (negative: none).
bool readable(int fd, double seconds) {
  pollfd watched{fd, POLLIN, 0};
  const int timeout = seconds < 0 ? -1 : static_cast<int>(std::min(seconds * 1e3, 2e9));
  int result = 0;
  do {
    result = ::poll(&watched, 1, timeout);
  } while (result < 0 && errno == EINTR);
  return result != 0;
}

// 's': a signal came; 'q': the handlers are being removed.
char next_byte(int fd) {
  char byte = 'q';
  while (::read(fd, &byte, 1) < 0 && errno == EINTR) {
  }
  return byte;
}

std::mutex grace_action_mutex;
std::function<void(int)> grace_action;

void run_grace_action(int signal) {
  std::function<void(int)> action;
  {
    const std::lock_guard lock(grace_action_mutex);
    action = grace_action;
  }
  if (action) done_within(1, [action, signal] { action(signal); });
}

void watch_grace(int fd, double grace_seconds) {
  readable(fd, -1);
  if (next_byte(fd) == 'q') return;
  if (readable(fd, grace_seconds)) return;
  run_grace_action(first_signal.load());
  end_at_once(first_signal.load(), ", the step did not end within the grace time");
}

void remove_locked() {
  if (!installed.active) return;
  for (std::size_t i = 0; i < kSignals.size(); ++i)
    ::sigaction(kSignals[i], &installed.previous[i], nullptr);
  wake_fd.store(-1);
  if (installed.grace.joinable()) {
    const char byte = 'q';
    const ssize_t ignored = ::write(installed.pipe[1], &byte, 1);
    static_cast<void>(ignored);
    installed.grace.join();
  }
  for (int& fd : installed.pipe) {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
  first_signal.store(0);
  installed.active = false;
}

}  // namespace

void install_stop_signals(double grace_seconds) {
  const std::lock_guard lock(install_mutex);
  remove_locked();
  if (grace_seconds > 0) {
    if (::pipe2(installed.pipe, O_CLOEXEC) != 0) {
      throw Error(ErrorKind::kFailed, str("creating a pipe for signals: ", std::strerror(errno)));
    }
    wake_fd.store(installed.pipe[1]);
    // The thread must not be the one that a signal interrupts: it may be inside poll for days.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    installed.grace =
        std::jthread([fd = installed.pipe[0], grace_seconds] { watch_grace(fd, grace_seconds); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  struct sigaction action {};
  action.sa_handler = on_signal;
  // A second signal must get through while the first is handled; calls under way are not disturbed.
  action.sa_flags = SA_RESTART | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i)
    ::sigaction(kSignals[i], &action, &installed.previous[i]);
  installed.active = true;
}

void remove_stop_signals() {
  const std::lock_guard lock(install_mutex);
  remove_locked();
}

void set_grace_action(std::function<void(int signal)> action) {
  const std::lock_guard lock(grace_action_mutex);
  grace_action = std::move(action);
}

int stop_requested() { return first_signal.load(); }

const char* signal_name(int signal) {
  const char* name = short_name(signal);
  return name != nullptr ? name : "another signal";
}

void set_last_words(std::string_view text) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const int next = 1 - words_index.load();
  auto& buffer = words[static_cast<std::size_t>(next)];
  const std::size_t length = std::min(text.size(), kWordsSize - 1);
  std::memcpy(buffer.data(), text.data(), length);
  buffer[length] = '\0';
  words_index.store(next);
}

}  // namespace zinf
