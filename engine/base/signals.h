// Stop politely, stop now: the first SIGINT, SIGTERM or SIGUSR1 (Slurm's --signal) asks the run to
// finish its step and save; a second one, or the end of the grace time, ends the process at once
// with 128 + signal. Process-wide by nature. Installed by the program, never by a library or at
// load time.
#pragma once

#include <functional>
#include <string_view>

namespace zinf {

// Installs the handlers. grace_seconds > 0: a thread waits after the first signal and ends the
// process when the run has not done so by then. Calling it again replaces the grace time and
// forgets a stop that was asked for. Install before other threads are started, and after fork in a
// child.
void install_stop_signals(double grace_seconds = 0);

// Puts the previous handlers back, ends the grace thread, forgets a stop that was asked for.
void remove_stop_signals();

// 0, or the number of the first signal. Async-signal-safe, any thread.
int stop_requested();

// "SIGTERM" for 15, and so on for those that end processes; "another signal" for the rest.
const char* signal_name(int signal);

// What the process writes to stderr when it ends at once, after "zinf: stopped by SIGINT: ": say
// which commit is the last whole one. Cut at 255 bytes. Any thread, not from a handler.
void set_last_words(std::string_view text);

// What is done before the process ends because its grace is over (a status file, say), for a second
// at most: what it needs may be what hangs. An empty one: nothing. Any thread, not from a handler.
void set_grace_action(std::function<void(int signal)> action);

}  // namespace zinf
