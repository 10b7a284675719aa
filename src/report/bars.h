#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

// Plots made of Unicode block characters (UTF-8), for terminals.

namespace palimpsest::report {

/// A bar of `fraction` (clamped to [0, 1]; NaN counts as 0) of `width` columns, in eighths of a
/// column, padded with blanks to `width`. A positive fraction always shows at least one eighth.
std::string bar(double fraction, int width);

struct BarRow {
  std::string label;
  double value = 0;
  std::string note;  ///< printed behind the bar, usually the value with its unit
};

/// One line a row, "label  bar  note", all bars on the scale of the largest value. Negative values
/// and NaN draw nothing. `width` is that of a whole line; bars get what the longest label and note
/// leave, at least eight columns.
std::string bar_chart(std::span<const BarRow> rows, int width);

/// One character a value, eight heights between the smallest and the largest finite value; a blank
/// for non-finite ones.
std::string sparkline(std::span<const double> values);
/// The same on a scale from low to high, for lines that are to be compared; values outside are drawn at its ends. Needs low < high.
std::string sparkline(std::span<const double> values, double low, double high);

/// Columns that UTF-8 text takes, counting one a code point (no wide characters, no combining
/// marks).
int display_width(std::string_view text);

}  // namespace palimpsest::report
