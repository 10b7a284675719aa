#include "report/numbers.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string_view>

namespace palimpsest::report {
namespace {

/// Three significant digits of a value in [0, 1000).
std::string three_digits(double value) {
  if (value < 9.995) return fmt::format("{:.2f}", value);
  if (value < 99.95) return fmt::format("{:.1f}", value);
  return fmt::format("{:.0f}", value);
}

template <std::size_t N>
std::string with_unit(std::int64_t value, double base,
                      const std::array<std::string_view, N>& units) {
  const double magnitude = std::fabs(static_cast<double>(value));
  const char* sign = value < 0 ? "-" : "";
  if (magnitude < base) return fmt::format("{}{:.0f}{}", sign, magnitude, units[0]);
  double scaled = magnitude / base;
  std::size_t unit = 1;
  // 999.5 would print as "1000": the next unit says "1.00" instead.
  while (scaled >= 999.5 && unit + 1 < N) {
    scaled /= base;
    ++unit;
  }
  return fmt::format("{}{}{}", sign, three_digits(scaled), units[unit]);
}

}  // namespace

std::string format_bytes(std::int64_t bytes) {
  static constexpr std::array<std::string_view, 7> kUnits = {" B",   " KiB", " MiB", " GiB",
                                                             " TiB", " PiB", " EiB"};
  return with_unit(bytes, 1024, kUnits);
}

std::string format_count(std::int64_t count) {
  static constexpr std::array<std::string_view, 7> kUnits = {"",   " k", " M", " G",
                                                             " T", " P", " E"};
  return with_unit(count, 1000, kUnits);
}

std::string format_grouped(std::int64_t count) {
  std::string digits = fmt::format("{}", count);
  const std::size_t first = count < 0 ? 1 : 0;
  for (std::size_t end = digits.size(); end > first + 3; end -= 3) digits.insert(end - 3, 1, ',');
  return digits;
}

std::string format_seconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  if (seconds > 1e9) return "-";
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

std::string format_rate(std::int64_t count, double seconds) {
  if (count <= 0 || !(seconds > 0)) return "-";
  const double rate = static_cast<double>(count) / seconds;
  return rate < 999.5 ? three_digits(rate) : fmt::format("{:.0f}", rate);
}

}  // namespace palimpsest::report
