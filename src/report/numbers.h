#pragma once

#include <cstdint>
#include <string>

// Numbers as people read them. Everything here returns plain ASCII and never throws.

namespace palimpsest::report {

/// Binary units, three significant digits: "512 B", "1.50 KiB", "38.9 MiB", "1.42 TiB". Negative
/// values keep their sign.
std::string format_bytes(std::int64_t bytes);

/// Decimal units, three significant digits: "384", "38.4 M", "2.78 T".
std::string format_count(std::int64_t count);

/// Every digit, in groups of three: "38,434,898".
std::string format_grouped(std::int64_t count);

/// "0.8 s", "12.3 s", "4 min 05 s", "2 h 03 min"; "-" for values that are not finite or negative.
std::string format_seconds(double seconds);

/// count / seconds with three significant digits, "-" when nothing was counted or no time passed.
std::string format_rate(std::int64_t count, double seconds);

}  // namespace palimpsest::report
