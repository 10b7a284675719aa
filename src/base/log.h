#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

// Logging for people: one line an event, on stderr. Standard output belongs to the text that a model writes.

namespace palimpsest::log {

enum class Level { kDebug, kInfo, kWarning, kError, kOff };

/// Default kWarning. Thread-safe.
void set_level(Level level);
void write(Level level, std::string_view line);

template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kWarning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace palimpsest::log
