#pragma once

// Checks for programmer errors. Never reachable from a file, a flag or a request: those get an Error.

namespace palimpsest::base {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const char* message);
}  // namespace palimpsest::base

/// Aborts with the condition and a reason when `condition` is false. Stays on in release builds.
#define PALIMPSEST_CHECK(condition, message)                                                  \
  do {                                                                                        \
    if (!(condition)) [[unlikely]]                                                            \
      ::palimpsest::base::check_failed(__FILE__, __LINE__, #condition, message);              \
  } while (0)
