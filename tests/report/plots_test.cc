#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "palimpsest/error.h"
#include "report/bars.h"
#include "report/svg.h"
#include "report/table.h"

namespace palimpsest::report {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++found;
  return found;
}

TEST(Bars, WidthIsExactAtEveryFraction) {
  for (int i = -10; i <= 110; ++i) EXPECT_EQ(display_width(bar(i / 100.0, 13)), 13) << i;
  EXPECT_EQ(bar(0, 4), "    ");
  EXPECT_EQ(bar(1, 4), "████");
  EXPECT_EQ(bar(0.5, 4), "██  ");
  EXPECT_EQ(bar(1.0 / 8, 1), "▏");
  EXPECT_EQ(bar(1e-9, 2), "▏ ") << "something is never drawn as nothing";
  EXPECT_EQ(bar(std::nan(""), 2), "  ");
  EXPECT_EQ(bar(0.5, 0), "");
}

TEST(Bars, ChartSharesOneScaleAndAlignsNotes) {
  const BarRow rows[] = {
      {"page", 1, "1 KiB"}, {"list, full", 4, "4 KiB"}, {"bad", std::nan(""), "-"}};
  const std::string chart = bar_chart(rows, 40);
  EXPECT_THAT(chart, HasSubstr("list, full  " + bar(1, 21) + "  4 KiB\n"));
  EXPECT_THAT(chart, HasSubstr("page        " + bar(0.25, 21) + "  1 KiB\n"));
  EXPECT_THAT(chart, HasSubstr("bad         " + bar(0, 21) + "      -\n"));
}

TEST(Bars, Sparkline) {
  const double values[] = {0, 7, 3.5, std::nan("")};
  EXPECT_EQ(sparkline(values), "▁█▅ ");
  const double flat[] = {2, 2};
  EXPECT_EQ(sparkline(flat), "▁▁");
  EXPECT_EQ(sparkline({}), "");
}

TEST(Bars, SparklinesOnOneScale) {
  const double values[] = {0, 7, 9, -1};
  EXPECT_EQ(sparkline(values, 0, 14), "▁▅▆▁");
}

TEST(SvgTest, PicturesBelowEachOther) {
  const std::string stacked = stack_svg({"<svg>a</svg>\n", "<svg>b</svg>\n"}, 100, 40);
  EXPECT_THAT(stacked, HasSubstr("viewBox=\"0 0 100 80\""));
  EXPECT_THAT(stacked, HasSubstr("translate(0 40)\">\n<svg>b</svg>"));
}

TEST(TableTest, AlignsColumnsWithoutTrailingBlanks) {
  Table table({{"name", Align::kLeft}, {"bytes", Align::kRight}});
  table.add_row({"müller", "1"});
  table.add_row({"b", "12345678"});
  table.add_row({"c"});
  EXPECT_EQ(table.to_string(1), " name       bytes\n müller         1\n b       12345678\n c\n");
  Table headless({{"", Align::kLeft}});
  headless.add_row({"x"});
  EXPECT_EQ(headless.to_string(), "x\n");
}

TEST(Svg, TicksAreNiceAndInside) {
  EXPECT_THAT(nice_ticks(0, 10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(nice_ticks(-1, 1, 4), ElementsAre(-1, -0.5, 0, 0.5, 1));
  for (const auto& [low, high] : {std::pair{0.03, 0.9}, {1e9, 7.3e9}, {-5e-4, 1e-5}}) {
    const auto ticks = nice_ticks(low, high, 6);
    EXPECT_GE(ticks.size(), 3u);
    EXPECT_LE(ticks.size(), 12u);
    const double slack = (high - low) * 1e-6;
    EXPECT_GE(ticks.front(), low - slack);
    EXPECT_LE(ticks.back(), high + slack);
  }
}

TEST(Svg, LinePlotBreaksAtGapsAndEscapes) {
  LinePlot plot;
  plot.title = "a < b & \"c\"";
  plot.series = {{"one", {1, 2, 3, 4, 5}, {1, 2, NAN, 4, 5}}};
  const std::string svg = to_svg(plot);
  EXPECT_EQ(count(svg, "<polyline"), 2u);
  EXPECT_EQ(count(svg, "<circle"), 4u);
  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; &quot;c&quot;"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_EQ(count(svg, "<svg"), count(svg, "</svg>"));
}

TEST(Svg, LogAxisLeavesOutWhatItCannotShow) {
  LinePlot plot;
  plot.log_x = plot.log_y = true;
  plot.series = {{"", {0, 1, 10, 100}, {1, -1, 10, 1000}}};
  const std::string svg = to_svg(plot);
  EXPECT_EQ(count(svg, "<circle"), 2u);
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(Svg, EmptyAndConstantPlotsStayFinite) {
  LinePlot plot;
  EXPECT_THAT(to_svg(plot), Not(HasSubstr("nan")));
  plot.series = {{"flat", {1, 1}, {3, 3}}};
  const std::string svg = to_svg(plot);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(Svg, BarPlotHeightsAreProportional) {
  BarPlot plot;
  plot.groups = {"a", "b"};
  plot.series = {{"", {}, {100, 50}}};
  const std::string svg = to_svg(plot);
  // The plot area is 420 - 40 - 56 = 324 high and starts at zero.
  EXPECT_THAT(svg, HasSubstr("height=\"324.0\" fill"));
  EXPECT_THAT(svg, HasSubstr("height=\"162.0\" fill"));
}

TEST(Svg, MismatchedLengthsAreErrors) {
  LinePlot line;
  line.series = {{"s", {1, 2}, {1}}};
  EXPECT_THROW(to_svg(line), Error);
  BarPlot bars;
  bars.groups = {"a"};
  bars.series = {{"s", {}, {1, 2}}};
  EXPECT_THROW(to_svg(bars), Error);
}

}  // namespace
}  // namespace palimpsest::report
