#include "base/log.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace rdmatx {
namespace {

constexpr const char* level_names[] = {"debug", "info", "warning", "error", "off"};

LogLevel level_from_environment() noexcept {
  const char* text = std::getenv("RDMATX_LOG");
  for (int i = 0; text && i < 5; ++i)
    if (std::string_view(text) == level_names[i]) return static_cast<LogLevel>(i);
  return LogLevel::warning;
}

void to_standard_error(LogLevel level, const char* message) {
  std::fprintf(stderr, "rdmatx %s: %s\n", level_names[static_cast<int>(level)], message);
}

std::atomic<LogSink> sink{to_standard_error};

}  // namespace

void set_log_sink(LogSink new_sink) noexcept {
  sink.store(new_sink ? new_sink : to_standard_error);
}

bool log_enabled(LogLevel level) noexcept {
  static const LogLevel threshold = level_from_environment();
  return level >= threshold;
}

void log(LogLevel level, const std::string& message) noexcept {
  if (log_enabled(level)) sink.load()(level, message.c_str());
}

}  // namespace rdmatx
