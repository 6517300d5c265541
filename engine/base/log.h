// The run's log: talk goes to stderr (and, once attached, to a file), results go to stdout.
// Thread-safe. Headers stay free of fmt so that files beside LibTorch can log; build the text with
// str().
#pragma once

#include <string>
#include <string_view>

namespace zinf::log {

enum class Level { kDebug, kInfo, kWarning, kError, kOff };

void set_level(Level level);
// Whether lines of this level are shown.
bool shows(Level level);
// Also appends every line to this file from now on; the file is created with mode 0600.
void attach_file(const std::string& path);

void debug(std::string_view text);
void info(std::string_view text);
void warning(std::string_view text);
void error(std::string_view text);
// Says each distinct text only the first time it is given.
void warning_once(const std::string& text);
void info_once(const std::string& text);

}  // namespace zinf::log
