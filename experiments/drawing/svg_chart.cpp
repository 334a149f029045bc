#include "experiments/drawing/svg_chart.h"

#include <algorithm>
#include <cmath>

#include "runtime/drawing/svg.h"

namespace millrace {
namespace {

using Points = std::vector<std::pair<double, double>>;

constexpr int kLeft = 58, kRight = 14, kTop = 40, kBottom = 40;
constexpr int kTitleLeft = 12, kLegendLine = 17;
constexpr double kLegendMark = 18, kLegendGap = 12;
constexpr std::size_t kMostPoints = 600;  // about one for a pixel
constexpr std::size_t kFewDots = 24;      // more are drawn smaller, so that they stay apart

Points finite(const Points& points) {
  Points result;
  std::copy_if(points.begin(), points.end(), std::back_inserter(result),
               [](const auto& p) { return std::isfinite(p.first) && std::isfinite(p.second); });
  return result;
}

/// The least and the greatest point of each bucket: spikes stay visible.
Points thinned(const Points& points) {
  if (points.size() <= kMostPoints) return points;
  Points result;
  const std::size_t buckets = kMostPoints / 2;
  for (std::size_t b = 0; b < buckets; ++b) {
    const auto begin = points.begin() + static_cast<std::ptrdiff_t>(b * points.size() / buckets);
    const auto end = points.begin() + static_cast<std::ptrdiff_t>((b + 1) * points.size() / buckets);
    auto [low, high] =
        std::minmax_element(begin, end, [](const auto& a, const auto& c) { return a.second < c.second; });
    if (high < low) std::swap(low, high);
    result.push_back(*low);
    if (high != low) result.push_back(*high);
  }
  return result;
}

constexpr double kCharacter = 7.3, kTitleCharacter = 8.4;  // widths in pixels

/// Returns the width in pixels of a label.
double text_width(const std::string& words) {
  return kCharacter * static_cast<double>(words.size());
}

/// `words` as far as they fit into `pixels`.
std::string fitted(const std::string& words, double pixels, double character = kCharacter) {
  return clipped(words, static_cast<std::size_t>(std::max(pixels / character, 1.0)));
}

/// An entry of the legend: the series' name, with a mark like its line to the left.
struct LegendEntry {
  const Series* series;
  std::string name;
  LegendPlace place;  ///< of the mark; line 0 is the title's
};

/// The title, and the legend at its right where both fit. Otherwise the legend has lines of its own below,
/// and the chart is as much higher.
struct ChartHead {
  ChartHead(const LineChart& chart, const std::vector<Series>& series) {
    const double right = chart.width - kRight, unit = 8 + text_width(chart.y_label);
    title = fitted(chart.title, right - kTitleLeft - unit, kTitleCharacter);
    std::vector<double> widths;
    double all = 0;
    for (const Series& s : series) {
      if (!chart.legend || s.name.empty() || s.points.empty()) continue;
      entries.push_back({&s, fitted(s.name, right - kTitleLeft - kLegendMark), {}});
      widths.push_back(kLegendMark + text_width(entries.back().name));
      all += widths.back() + (entries.size() > 1 ? kLegendGap : 0);
    }
    const double title_end = kTitleLeft + kTitleCharacter * static_cast<double>(title.size()) + unit;
    const bool one_line = title_end + kLegendGap + all <= right;
    if (!one_line && !widths.empty()) std::ranges::fill(widths, std::ranges::max(widths));  // columns
    const std::vector<LegendPlace> places =
        legend_places(widths, one_line ? right - all : kTitleLeft, right, kLegendGap);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      entries[i].place = places[i];
      if (!one_line) ++entries[i].place.line;
    }
    if (!entries.empty()) added = kLegendLine * entries.back().place.line;
  }
  std::string title;
  std::vector<LegendEntry> entries;
  int added = 0;  ///< height in pixels
};

struct Range {
  double low = INFINITY, high = -INFINITY;
  void take(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  void make_wide() {
    if (!(low <= high)) low = 0, high = 1;
    if (low == high) {
      const double pad = low == 0 ? 1 : std::abs(low) * 0.1;
      low -= pad;
      high += pad;
    }
  }
};

/// Maps values to pixels and draws the frame.
class Frame {
 public:
  Frame(const LineChart& chart, const std::vector<Series>& series, const ChartHead& head)
      : chart_(chart), head_(head), top_(kTop + head.added), bottom_(chart.height + head.added - kBottom) {
    for (const Series& s : series) {
      for (const auto& [px, py] : s.points) x_.take(px), y_.take(py);
      for (const auto& [px, low, high] : s.band) y_.take(low), y_.take(high);
    }
    if (chart.y_from_zero) y_.take(0);
    if (chart.whole_x && x_.low == x_.high) x_.low -= 1, x_.high += 1;
    x_.make_wide();
    y_.make_wide();
    if (!(chart.y_from_zero && y_.low == 0)) y_.low -= (y_.high - y_.low) * 0.06;
    // The frame ends at a tick.
    const double step = round_ticks(y_.low, y_.high, 5).second;
    y_.high = std::ceil(y_.high / step - 1e-9) * step;
  }
  double x(double value) const {
    return kLeft + (value - x_.low) / (x_.high - x_.low) * (chart_.width - kLeft - kRight);
  }
  double y(double value) const { return bottom_ - (value - y_.low) / (y_.high - y_.low) * (bottom_ - top_); }

  std::string draw() const {
    std::string svg;
    const auto [y_first, y_step] = round_ticks(y_.low, y_.high, 5);
    for (double v = y_first; v <= y_.high + y_step * 1e-9; v += y_step) {
      svg += printed("<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>", kLeft,
                     chart_.width - kRight, y(v), y(v));
      svg += printed("<text class=\"tick\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.6g</text>", kLeft - 7,
                     y(v) + 4, clean(v, y_step));
    }
    const double x_step = std::max(round_ticks(x_.low, x_.high, 6).second, chart_.whole_x ? 1.0 : 0.0);
    const double x_first = std::ceil(x_.low / x_step - 1e-9) * x_step;
    for (double v = x_first; v <= x_.high + x_step * 1e-9; v += x_step) {
      const std::string label = printed("%.7g", clean(v, x_step));
      const double last = chart_.width - text_width(label) / 2;  // the label ends at the edge
      svg += printed("<text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">", std::min(x(v), last),
                     bottom_ + 17) +
             label + "</text>";
    }
    for (double v : chart_.marks) {
      if (v < x_.low || v > x_.high) continue;
      svg += printed("<line class=\"mark\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"><title>", x(v), x(v),
                     top_, bottom_) +
             escape_xml(chart_.mark_name) + printed(" %.6g</title></line>", v);
    }
    svg += printed("<line class=\"axis\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>", kLeft,
                   chart_.width - kRight, bottom_, bottom_);
    svg += printed("<text class=\"tick\" x=\"%d\" y=\"%d\" text-anchor=\"end\">", chart_.width - kRight,
                   bottom_ + kBottom - 6) +
           escape_xml(chart_.x_label) + "</text>";
    return svg + printed("<text class=\"title\" x=\"%d\" y=\"20\">", kTitleLeft) + escape_xml(head_.title) +
           "<tspan class=\"tick\" dx=\"8\">" + escape_xml(chart_.y_label) + "</tspan></text>";
  }

 private:
  static double clean(double value, double step) { return std::abs(value) < step * 1e-9 ? 0 : value; }
  const LineChart& chart_;
  const ChartHead& head_;
  const int top_, bottom_;
  Range x_, y_;
};

std::string draw_band(const Frame& frame, const Series& series) {
  std::string there, back;
  for (const auto& [x, low, high] : series.band) {
    there += printed(there.empty() ? "M%.1f %.1f" : "L%.1f %.1f", frame.x(x), frame.y(high));
    back.insert(0, printed("L%.1f %.1f", frame.x(x), frame.y(low)));
  }
  if (there.empty()) return "";
  return "<path d=\"" + there + back + "Z\" fill=\"" + escape_xml(series.colour) +
         "\" stroke=\"none\" opacity=\"0.18\"/>";
}

std::string draw_series(const Frame& frame, const Series& series) {
  const std::string colour = escape_xml(series.colour);
  if (series.style == Series::Style::Dots || series.points.size() == 1) {
    const char* const radius = series.points.size() <= kFewDots ? "4" : "2.2";
    std::string svg;
    for (const auto& [x, y] : series.points) {
      svg += printed("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%s\" fill=\"", frame.x(x), frame.y(y), radius) +
             colour + "\"><title>" + escape_xml(series.name) + printed(": %.6g at %.6g", y, x) +
             "</title></circle>";
    }
    return svg;
  }
  std::string path;
  for (const auto& [x, y] : series.points)
    path += printed(path.empty() ? "M%.1f %.1f" : "L%.1f %.1f", frame.x(x), frame.y(y));
  if (path.empty()) return "";
  const bool faint = series.style == Series::Style::Faint;
  return "<path d=\"" + path + "\" fill=\"none\" stroke=\"" + colour +
         (faint ? "\" stroke-width=\"1\" opacity=\"0.35\"" : "\" stroke-width=\"2\"") +
         (series.style == Series::Style::Dashed ? " stroke-dasharray=\"5 5\"" : "") +
         " stroke-linejoin=\"round\" stroke-linecap=\"round\">" +
         (series.name.empty() ? "" : "<title>" + escape_xml(series.name) + "</title>") + "</path>";
}

std::string opening(int width, int height, const std::string& label) {
  return printed(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" viewBox=\"0 0 %d %d\" role=\"img\" "
             "aria-label=\"",
             width, height) +
         escape_xml(label) + "\">";
}

std::string draw_legend(const ChartHead& head) {
  std::string svg;
  for (const LegendEntry& entry : head.entries) {
    const Series& s = *entry.series;
    const double x = entry.place.x;
    const int y = 20 + kLegendLine * entry.place.line;
    svg += printed("<text class=\"tick\" x=\"%.1f\" y=\"%d\">", x + kLegendMark, y) + escape_xml(entry.name) +
           (entry.name == s.name ? "" : "<title>" + escape_xml(s.name) + "</title>") + "</text>";
    if (s.style == Series::Style::Dots || s.points.size() == 1) {
      svg += printed("<circle cx=\"%.1f\" cy=\"%d\" r=\"4\"", x + 9, y - 4);
    } else if (s.style == Series::Style::Faint) {
      svg += printed("<rect x=\"%.1f\" y=\"%.1f\" width=\"14\" height=\"1\" opacity=\"0.5\"", x, y - 4.5);
    } else if (s.style == Series::Style::Dashed) {
      // Two dashes of 5: the line's own.
      svg += printed("<path d=\"M%.1f %dh5v2h-5zm9 0h5v2h-5z\"", x, y - 5);
    } else {
      svg += printed("<rect x=\"%.1f\" y=\"%d\" width=\"14\" height=\"2\"", x, y - 5);
    }
    svg += " fill=\"" + escape_xml(s.colour) + "\"/>";
  }
  return svg;
}

}  // namespace

Points smoothed(const Points& points, double window) {
  const double keep = window <= 1 ? 0 : 1 - 2 / (window + 1);
  Points result;
  double sum = 0, weight = 0;
  for (const auto& [x, y] : points) {
    sum = keep * sum + (1 - keep) * y;
    weight = keep * weight + (1 - keep);
    result.emplace_back(x, sum / weight);
  }
  return result;
}

Series series_number(std::size_t index, std::string name, Points points) {
  static constexpr const char* kColours[] = {"var(--line)", "var(--second)", "#2a9d5c", "#b5651d",
                                             "#7d4fb5",     "#c23b67",       "#5b7083"};
  static constexpr Series::Style kStyles[] = {Series::Style::Line, Series::Style::Dashed,
                                              Series::Style::Dots};
  return {.name = std::move(name),
          .colour = kColours[index % std::size(kColours)],
          .points = std::move(points),
          .style = kStyles[index / std::size(kColours) % std::size(kStyles)]};
}

std::string line_chart_svg(const LineChart& chart, const std::vector<Series>& series) {
  std::vector<Series> shown = series;
  for (Series& s : shown) s.points = thinned(finite(s.points));
  const ChartHead head(chart, shown);
  const Frame frame(chart, shown, head);
  std::string svg =
      opening(chart.width, chart.height + head.added, chart.title) + frame.draw() + draw_legend(head);
  for (const Series& s : shown) svg += draw_band(frame, s);
  for (const Series& s : shown) svg += draw_series(frame, s);
  return svg + "</svg>";
}

}  // namespace millrace
