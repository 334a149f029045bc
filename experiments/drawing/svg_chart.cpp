#include "experiments/drawing/svg_chart.h"

#include <algorithm>
#include <cmath>

#include "runtime/drawing/svg.h"

namespace millrace {
namespace {

using Points = std::vector<std::pair<double, double>>;

constexpr int kLeft = 58, kRight = 14, kTop = 40, kBottom = 40;
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

/// Returns the width in pixels of a label.
double text_width(const std::string& words) {
  return 6.6 * static_cast<double>(words.size());
}

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
  Frame(const LineChart& chart, const std::vector<Series>& series) : chart_(chart) {
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
  double y(double value) const {
    return chart_.height - kBottom - (value - y_.low) / (y_.high - y_.low) * (chart_.height - kTop - kBottom);
  }

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
                     chart_.height - kBottom + 17) +
             label + "</text>";
    }
    for (double v : chart_.marks) {
      if (v < x_.low || v > x_.high) continue;
      svg += printed("<line class=\"mark\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"><title>", x(v), x(v),
                     kTop, chart_.height - kBottom) +
             escape_xml(chart_.mark_name) + printed(" %.6g</title></line>", v);
    }
    svg += printed("<line class=\"axis\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>", kLeft,
                   chart_.width - kRight, chart_.height - kBottom, chart_.height - kBottom);
    svg += printed("<text class=\"tick\" x=\"%d\" y=\"%d\" text-anchor=\"end\">", chart_.width - kRight,
                   chart_.height - 6) +
           escape_xml(chart_.x_label) + "</text>";
    return svg + "<text class=\"title\" x=\"12\" y=\"20\">" + escape_xml(chart_.title) +
           "<tspan class=\"tick\" dx=\"8\">" + escape_xml(chart_.y_label) + "</tspan></text>";
  }

 private:
  static double clean(double value, double step) { return std::abs(value) < step * 1e-9 ? 0 : value; }
  const LineChart& chart_;
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

/// Right-aligned names of what is drawn, each with a mark like it.
std::string legend(const std::vector<Series>& series, int width) {
  std::string svg;
  double x = width - kRight;
  for (auto s = series.rbegin(); s != series.rend(); ++s) {
    if (s->name.empty() || s->points.empty()) continue;
    x -= text_width(s->name);
    svg += printed("<text class=\"tick\" x=\"%.1f\" y=\"20\">", x) + escape_xml(s->name) + "</text>";
    const bool dots = s->style == Series::Style::Dots || s->points.size() == 1,
               faint = s->style == Series::Style::Faint;
    svg += (dots ? printed("<circle cx=\"%.1f\" cy=\"16\" r=\"4\" fill=\"", x - 9)
                 : printed("<rect x=\"%.1f\" y=\"%s\" width=\"14\" height=\"%s\"%s fill=\"", x - 18,
                           faint ? "15.5" : "15", faint ? "1" : "2", faint ? " opacity=\"0.5\"" : "")) +
           escape_xml(s->colour) + "\"/>";
    x -= 30;
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

std::string line_chart_svg(const LineChart& chart, const std::vector<Series>& series) {
  std::vector<Series> shown = series;
  for (Series& s : shown) s.points = thinned(finite(s.points));
  const Frame frame(chart, shown);
  std::string svg = opening(chart.width, chart.height, chart.title) + frame.draw() +
                    (chart.legend ? legend(shown, chart.width) : "");
  for (const Series& s : shown) svg += draw_band(frame, s);
  for (const Series& s : shown) svg += draw_series(frame, s);
  return svg + "</svg>";
}

}  // namespace millrace
