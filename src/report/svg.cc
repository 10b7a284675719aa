#include "report/svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <string_view>

#include "base/error.h"

namespace palimpsest::report {
namespace {

// Colours of Okabe and Ito (2008), told apart by people with colour vision deficiencies.
constexpr std::array<std::string_view, 8> kColors = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                                     "#E69F00", "#56B4E9", "#8A6D00", "#777777"};
constexpr double kLeft = 72, kRight = 24, kTop = 40, kBottom = 56;

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

/// One axis: values (or their logarithms) mapped to pixels.
struct Axis {
  double low, high, pixel_low, pixel_high;
  bool log;

  bool shows(double v) const { return std::isfinite(v) && (!log || v > 0); }
  double scale(double v) const { return log ? std::log10(v) : v; }
  double pixel(double v) const {
    return pixel_low + (scale(v) - low) / (high - low) * (pixel_high - pixel_low);
  }
};

/// Grows [low, high] over all values that the axis can show; an empty or single-valued range is
/// widened.
class Range {
 public:
  explicit Range(bool log) : log_(log) {}
  void add(double v) {
    if (!std::isfinite(v) || (log_ && v <= 0)) return;
    low_ = std::min(low_, log_ ? std::log10(v) : v);
    high_ = std::max(high_, log_ ? std::log10(v) : v);
  }
  Axis axis(double pixel_low, double pixel_high) const {
    double low = low_, high = high_;
    if (!(low <= high)) low = 0, high = 1;
    if (low == high) {
      const double margin = low == 0 ? 1 : std::fabs(low) * 0.5;
      low -= margin, high += margin;
    }
    return {low, high, pixel_low, pixel_high, log_};
  }

 private:
  bool log_;
  double low_ = INFINITY, high_ = -INFINITY;
};

std::vector<double> ticks_of(const Axis& axis) {
  std::vector<double> ticks = nice_ticks(axis.low, axis.high, 6);
  if (!axis.log) return ticks;
  // On a log axis marks are whole powers of ten where at least two fit, else whatever nice_ticks
  // found.
  std::vector<double> powers;
  for (const double t : ticks) {
    if (t == std::floor(t)) powers.push_back(t);
  }
  if (powers.size() >= 2) ticks = powers;
  for (double& t : ticks) t = std::pow(10.0, t);
  return ticks;
}

class Canvas {
 public:
  Canvas(int width, int height, std::string_view title) : width_(width), height_(height) {
    add("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
        "{1}\" "
        "font-family=\"sans-serif\" font-size=\"12\" fill=\"#777777\">\n",
        width, height);
    add("<title>{0}</title>\n<text x=\"{1}\" y=\"22\" font-size=\"15\" "
        "text-anchor=\"middle\">{0}</text>\n",
        escape(title), width / 2);
  }
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }
  void y_axis(const Axis& y, std::string_view label) {
    for (const double t : ticks_of(y)) {
      const double p = y.pixel(t);
      add("<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#999999\" "
          "stroke-opacity=\"0.35\"/>\n",
          kLeft, width_ - kRight, p, p);
      add("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{:.4g}</text>\n", kLeft - 6, p + 4,
          t);
    }
    const double middle = (kTop + height_ - kBottom) / 2;
    add("<text x=\"16\" y=\"{0:.1f}\" text-anchor=\"middle\" transform=\"rotate(-90 16 "
        "{0:.1f})\">{1}</text>\n",
        middle, escape(label));
  }
  void x_axis(const Axis& x, std::string_view label) {
    for (const double t : ticks_of(x)) x_mark(x.pixel(t), fmt::format("{:.4g}", t));
    add("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
        (kLeft + width_ - kRight) / 2, height_ - kBottom + 34.0, escape(label));
  }
  void x_mark(double pixel, std::string_view text) {
    add("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", pixel,
        height_ - kBottom + 16.0, escape(text));
  }
  /// Names and colours of the series, in one row at the bottom; nothing for a single series without
  /// a name.
  void legend(const std::vector<Series>& series) {
    double x = kLeft;
    for (std::size_t i = 0; i < series.size(); ++i) {
      if (series[i].name.empty()) continue;
      add("<rect x=\"{:.1f}\" y=\"{}\" width=\"10\" height=\"10\" fill=\"{}\"/>\n", x, height_ - 15,
          color(i));
      add("<text x=\"{:.1f}\" y=\"{}\">{}</text>\n", x + 14, height_ - 6, escape(series[i].name));
      x += 30 + 7.0 * static_cast<double>(series[i].name.size());
    }
  }
  static std::string_view color(std::size_t i) { return kColors[i % kColors.size()]; }
  std::string finish() && { return std::move(text_) + "</svg>\n"; }

 private:
  int width_, height_;
  std::string text_;
};

/// The runs of a series between points that cannot be shown.
void draw_series(Canvas& canvas, const Series& series, const Axis& x, const Axis& y,
                 std::string_view color) {
  std::string points;
  const auto flush = [&] {
    if (!points.empty()) {
      canvas.add("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\" points=\"{}\"/>\n",
                 color, points);
    }
    points.clear();
  };
  for (std::size_t i = 0; i < series.y.size(); ++i) {
    if (!x.shows(series.x[i]) || !y.shows(series.y[i])) {
      flush();
      continue;
    }
    const double px = x.pixel(series.x[i]), py = y.pixel(series.y[i]);
    fmt::format_to(std::back_inserter(points), "{}{:.1f},{:.1f}", points.empty() ? "" : " ", px,
                   py);
    canvas.add("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\" fill=\"{}\"/>\n", px, py, color);
  }
  flush();
}

}  // namespace

std::vector<double> nice_ticks(double low, double high, int count) {
  const double raw = (high - low) / std::max(count, 1);
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  const double part = raw / power;
  const double step = power * (part <= 1.5 ? 1 : part <= 3.5 ? 2 : part <= 7.5 ? 5 : 10);
  std::vector<double> ticks;
  const double first = std::ceil(low / step - 1e-9), last = std::floor(high / step + 1e-9);
  for (double k = first; k <= last; ++k) ticks.push_back(k * step + 0.0);
  return ticks;
}

std::string to_svg(const LinePlot& plot) {
  Range x_range(plot.log_x), y_range(plot.log_y);
  if (plot.y_from_zero) y_range.add(0);
  for (const Series& series : plot.series) {
    if (series.x.size() != series.y.size()) {
      throw make_error(ErrorCode::kUsage, "plot '{}': series '{}' has {} x and {} y values",
                       plot.title, series.name, series.x.size(), series.y.size());
    }
    for (const double v : series.x) x_range.add(v);
    for (const double v : series.y) y_range.add(v);
  }
  Canvas canvas(plot.width, plot.height, plot.title);
  const Axis x = x_range.axis(kLeft, plot.width - kRight);
  const Axis y = y_range.axis(plot.height - kBottom, kTop);
  canvas.y_axis(y, plot.y_label);
  canvas.x_axis(x, plot.x_label);
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    draw_series(canvas, plot.series[i], x, y, Canvas::color(i));
  }
  canvas.legend(plot.series);
  return std::move(canvas).finish();
}

std::string to_svg(const BarPlot& plot) {
  Range range(false);
  range.add(0);
  for (const Series& series : plot.series) {
    if (series.y.size() != plot.groups.size()) {
      throw make_error(ErrorCode::kUsage, "plot '{}': series '{}' has {} values for {} groups",
                       plot.title, series.name, series.y.size(), plot.groups.size());
    }
    for (const double v : series.y) range.add(std::max(v, 0.0));
  }
  Canvas canvas(plot.width, plot.height, plot.title);
  const Axis y = range.axis(plot.height - kBottom, kTop);
  canvas.y_axis(y, plot.y_label);
  const double slot =
      (plot.width - kLeft - kRight) / std::max<double>(1, static_cast<double>(plot.groups.size()));
  const double bar_width =
      0.8 * slot / std::max<double>(1, static_cast<double>(plot.series.size()));
  for (std::size_t g = 0; g < plot.groups.size(); ++g) {
    const double left = kLeft + slot * static_cast<double>(g);
    canvas.x_mark(left + slot / 2, plot.groups[g]);
    for (std::size_t i = 0; i < plot.series.size(); ++i) {
      const double v = plot.series[i].y[g];
      if (!std::isfinite(v) || v <= 0) continue;
      canvas.add(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n",
          left + 0.1 * slot + bar_width * static_cast<double>(i), y.pixel(v), bar_width,
          y.pixel(0) - y.pixel(v), Canvas::color(i));
    }
  }
  canvas.legend(plot.series);
  return std::move(canvas).finish();
}

std::string stack_svg(const std::vector<std::string>& pictures, int width, int height) {
  const int total = height * static_cast<int>(pictures.size());
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\">\n",
      width, total);
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    text += fmt::format("<g transform=\"translate(0 {})\">\n{}</g>\n",
                        height * static_cast<int>(i), pictures[i]);
  }
  return text + "</svg>\n";
}

}  // namespace palimpsest::report
