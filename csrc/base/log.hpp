#pragma once

#include <string>

#include "base/export.hpp"

namespace rdmatx {

enum class LogLevel : int { debug = 0, info = 1, warning = 2, error = 3, off = 4 };

/// Receives every message at or above the level. Called from any thread; must not throw.
using LogSink = void (*)(LogLevel, const char* message);

/// Messages go to standard error until a sink is set; RDMATX_LOG=debug|info|warning|error|off sets the level.
RDMATX_API void set_log_sink(LogSink sink) noexcept;
RDMATX_API bool log_enabled(LogLevel level) noexcept;
RDMATX_API void log(LogLevel level, const std::string& message) noexcept;

}  // namespace rdmatx
