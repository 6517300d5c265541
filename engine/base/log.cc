#include "engine/base/log.h"

#include <fcntl.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>

namespace zinf::log {

namespace {

std::shared_ptr<spdlog::logger> logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>(
        std::getenv("NO_COLOR") ? spdlog::color_mode::never : spdlog::color_mode::automatic);
    auto made = std::make_shared<spdlog::logger>("zinf", sink);
    made->set_pattern("%H:%M:%S %^%l%$ %v");
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return instance;
}

spdlog::level::level_enum spdlog_level(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
    case Level::kOff:
      break;
  }
  return spdlog::level::off;
}

bool first_time(const std::string& text) {
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::lock_guard lock(mutex);
  return said.insert(text).second;
}

}  // namespace

void set_level(Level level) { logger()->set_level(spdlog_level(level)); }

bool shows(Level level) { return logger()->should_log(spdlog_level(level)); }

void attach_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
  if (fd >= 0) ::close(fd);
  auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
  sink->set_pattern("%Y-%m-%dT%H:%M:%S%z %l %v");
  logger()->sinks().push_back(sink);
}

void debug(std::string_view text) { logger()->debug("{}", text); }
void info(std::string_view text) { logger()->info("{}", text); }
void warning(std::string_view text) { logger()->warn("{}", text); }
void error(std::string_view text) { logger()->error("{}", text); }

void warning_once(const std::string& text) {
  if (first_time(text)) warning(text);
}
void info_once(const std::string& text) {
  if (first_time(text)) info(text);
}

}  // namespace zinf::log
