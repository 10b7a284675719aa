#pragma once

#include <string>
#include <vector>

// Line and bar plots as self-contained SVG text (no scripts, no fonts, no links), readable on light
// and dark pages.

namespace palimpsest::report {

struct Series {
  std::string name;
  std::vector<double> x;  ///< as long as y
  std::vector<double> y;  ///< points that are not finite break the line
};

struct LinePlot {
  std::string title, x_label, y_label;
  std::vector<Series> series;         ///< at most 8 are told apart by colour
  bool log_x = false, log_y = false;  ///< base 10; points <= 0 on a log axis are left out
  bool y_from_zero = false;
  int width = 720, height = 420;
};

struct BarPlot {
  std::string title, y_label;
  std::vector<std::string> groups;  ///< names along the x axis
  std::vector<Series>
      series;  ///< y[g] is the bar of group g (negative and non-finite draw nothing); x is ignored
  int width = 720, height = 420;
};

/// Throws Error{kUsage} when x and y differ in length, or y of a bar series and groups do.
std::string to_svg(const LinePlot& plot);
std::string to_svg(const BarPlot& plot);

/// Pictures of the given size, one below the other, as one.
std::string stack_svg(const std::vector<std::string>& pictures, int width, int height);

/// Where an axis from low to high puts its marks: multiples of 1, 2 or 5 times a power of ten
/// inside [low, high], about `count` of them. Needs finite low < high.
std::vector<double> nice_ticks(double low, double high, int count);

}  // namespace palimpsest::report
