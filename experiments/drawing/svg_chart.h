// Charts as inline SVG. Colours that depend on light or dark come from the page's CSS variables.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace millrace {

struct Series {
  std::string name;
  std::string colour;                             ///< CSS colour
  std::vector<std::pair<double, double>> points;  ///< x ascending; points with NaN or Inf are left out
  enum class Style { Line, Faint, Dashed, Dots } style = Style::Line;
  std::vector<std::array<double, 3>> band = {};  ///< x ascending, low, high: shaded behind the line
};

/// Returns one of many series. Colours come again after seven: the next seven are dashed, and those after
/// them are dots.
Series series_number(std::size_t index, std::string name, std::vector<std::pair<double, double>> points = {});

struct LineChart {
  std::string title;
  std::string x_label;
  std::string y_label;
  int width = 540;
  int height = 260;  ///< a legend that does not fit beside the title adds its lines
  bool y_from_zero = false;
  bool legend = true;
  bool whole_x = false;       ///< x are counts: no ticks between two of them
  std::vector<double> marks;  ///< x of vertical lines; those that are not within the series are left out
  std::string mark_name;
};

/// A self-contained <svg>; a line of one point is a dot, long series are thinned to what a screen can show
/// (extremes are kept). Text is escaped.
std::string line_chart_svg(const LineChart& chart, const std::vector<Series>& series);

/// Exponential moving average with bias correction; `window` points have most of the weight.
std::vector<std::pair<double, double>> smoothed(const std::vector<std::pair<double, double>>& points,
                                                double window);

}  // namespace millrace
