#include "report/bars.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace palimpsest::report {
namespace {

constexpr std::array<std::string_view, 9> kHorizontal = {"",  "▏", "▎", "▍", "▌",
                                                         "▋", "▊", "▉", "█"};
constexpr std::array<std::string_view, 8> kVertical = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};

void pad_to(std::string& line, int width) {
  const int missing = width - display_width(line);
  if (missing > 0) line.append(static_cast<std::size_t>(missing), ' ');
}

}  // namespace

int display_width(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::string bar(double fraction, int width) {
  if (width <= 0) return {};
  const double clamped = fraction > 0 ? std::min(fraction, 1.0) : 0.0;
  int eighths = static_cast<int>(std::lround(clamped * width * 8));
  if (clamped > 0) eighths = std::max(eighths, 1);
  std::string line;
  for (int i = 0; i < eighths / 8; ++i) line += kHorizontal[8];
  line += kHorizontal[static_cast<std::size_t>(eighths % 8)];
  pad_to(line, width);
  return line;
}

std::string bar_chart(std::span<const BarRow> rows, int width) {
  int label_width = 0, note_width = 0;
  double largest = 0;
  for (const BarRow& row : rows) {
    label_width = std::max(label_width, display_width(row.label));
    note_width = std::max(note_width, display_width(row.note));
    if (std::isfinite(row.value)) largest = std::max(largest, row.value);
  }
  const int bar_width = std::max(8, width - label_width - note_width - 4);
  std::string chart;
  for (const BarRow& row : rows) {
    std::string line = row.label;
    pad_to(line, label_width);
    line += "  " + bar(largest > 0 ? row.value / largest : 0, bar_width) + "  ";
    const int missing = note_width - display_width(row.note);
    line.append(static_cast<std::size_t>(std::max(missing, 0)), ' ');
    chart += line + row.note + "\n";
  }
  return chart;
}

std::string sparkline(std::span<const double> values) {
  double low = INFINITY, high = -INFINITY;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  return sparkline(values, low, high);
}

std::string sparkline(std::span<const double> values, double low, double high) {
  std::string line;
  for (const double value : values) {
    if (!std::isfinite(value)) {
      line += ' ';
      continue;
    }
    const double part = high > low ? std::clamp((value - low) / (high - low), 0.0, 1.0) : 0;
    line += kVertical[static_cast<std::size_t>(std::lround(part * 7))];
  }
  return line;
}

}  // namespace palimpsest::report
