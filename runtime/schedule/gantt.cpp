#include "runtime/schedule/gantt.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "runtime/schedule/schedule.h"

namespace millrace {
namespace {

constexpr int kLeft = 84, kTop = 46, kRow = 30, kBar = 24;

std::string format(const char* pattern, auto... values) {
  char text[512];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

/// 1, 2 or 5 times a power of ten: about `count` ticks over `span`.
double tick_step(double span, int count) {
  const double raw = span / count, power = std::pow(10, std::floor(std::log10(raw)));
  for (double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw) return factor * power;
  }
  return 10 * power;
}

const char* kind_of(Op op) {
  switch (op) {
    case Op::Forward:
      return "forward";
    case Op::Backward:
    case Op::BackwardInput:
      return "backward";
    case Op::BackwardWeight:
      return "weight";
    case Op::Reduce:
      return "reduce";
    case Op::Update:
      return "update";
    default:
      return "";
  }
}

}  // namespace

std::string escape_xml(const std::string& text) {
  std::string out;
  for (char c : text) {
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
      case '\'':
        out += "&#39;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

const char* colour_of(const std::string& kind) {
  if (kind == "forward") return "#4c8bf5";
  if (kind == "backward") return "#34a37a";
  if (kind == "weight") return "#8bc34a";
  if (kind == "update") return "#b06ad9";
  if (kind == "reduce") return "#e8894a";
  if (kind == "wait") return "#d9dde3";
  if (kind == "data") return "#e0c341";
  if (kind == "send") return "#e26d8a";
  return "#9aa3ad";
}

std::string gantt_svg(const std::vector<GanttRow>& rows, const GanttOptions& options) {
  double span = options.span;
  std::vector<std::string> kinds;
  for (const GanttRow& row : rows) {
    for (const GanttBar& bar : row.bars) {
      if (options.span <= 0) span = std::max(span, bar.end);
      if (std::ranges::find(kinds, bar.kind) == kinds.end()) kinds.push_back(bar.kind);
    }
  }
  if (span <= 0) span = 1;
  const int height = kTop + kRow * static_cast<int>(rows.size()) + 34;
  const double per_unit = (options.width - kLeft - 16) / span;
  std::string svg = format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
      "font-family=\"system-ui,sans-serif\" font-size=\"12\">",
      options.width, height, options.width, height);
  svg += "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\" rx=\"6\"/>";
  svg += "<text x=\"12\" y=\"22\" font-size=\"14\" font-weight=\"600\" fill=\"#1f2933\">" +
         escape_xml(options.title) + "</text>";
  double legend = options.width - 16;
  for (auto kind = kinds.rbegin(); kind != kinds.rend(); ++kind) {
    legend -= 24 + 6.6 * static_cast<double>(kind->size());
    svg += format(
               "<rect x=\"%.1f\" y=\"12\" width=\"11\" height=\"11\" rx=\"2\" fill=\"%s\"/><text x=\"%.1f\" "
               "y=\"22\" fill=\"#52606d\">",
               legend, colour_of(*kind), legend + 15) +
           escape_xml(*kind) + "</text>";
  }
  const double step = tick_step(span * options.scale, 10) / options.scale;
  const int bottom = kTop + kRow * static_cast<int>(rows.size());
  for (double t = 0; t <= span * 1.0001; t += step) {
    const double x = kLeft + t * per_unit;
    svg += format(
        "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#e4e7eb\"/><text x=\"%.1f\" y=\"%d\" "
        "text-anchor=\"middle\" fill=\"#7b8794\">%g</text>",
        x, kTop - 6, x, bottom, x, bottom + 18, t * options.scale);
  }
  svg += format("<text x=\"%d\" y=\"%d\" fill=\"#7b8794\">", 12, bottom + 18) + escape_xml(options.unit) +
         "</text>";
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const int y = kTop + kRow * static_cast<int>(r);
    svg +=
        format("<text x=\"12\" y=\"%d\" fill=\"#1f2933\">", y + 17) + escape_xml(rows[r].label) + "</text>";
    for (const GanttBar& bar : rows[r].bars) {
      const double x = kLeft + bar.start * per_unit, width = std::max(0.6, (bar.end - bar.start) * per_unit);
      if (x > options.width - 16) continue;
      svg += format("<g><rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" rx=\"2\" fill=\"%s\"%s/>", x,
                    y + 1, width, kBar, colour_of(bar.kind),
                    width > 3 ? " stroke=\"#fff\" stroke-width=\"0.7\"" : "");
      if (width > 7.0 * static_cast<double>(bar.label.size()) + 2 && !bar.label.empty()) {
        svg += format("<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\" font-size=\"11\" fill=\"%s\">",
                      x + width / 2, y + 17, bar.kind == "wait" ? "#52606d" : "#fff") +
               escape_xml(bar.label) + "</text>";
      }
      svg += "<title>" + escape_xml(bar.kind + " " + bar.label) +
             format(": %.3f - %.3f ", bar.start * options.scale, bar.end * options.scale) +
             escape_xml(options.unit) + "</title></g>";
    }
  }
  return svg + "</svg>";
}

std::string draw_svg(const Simulation& simulation, const std::string& title) {
  std::vector<GanttRow> rows;
  for (std::size_t r = 0; r < simulation.ranks.size(); ++r) {
    GanttRow& row = rows.emplace_back(GanttRow{.label = "rank " + std::to_string(r)});
    for (const TimedAction& t : simulation.ranks[r]) {
      if (t.end > t.start && !is_transfer(t.action.op))
        row.bars.push_back({t.start, t.end, kind_of(t.action.op), std::to_string(t.action.microbatch.value)});
    }
  }
  const bool units = simulation.makespan >= 10;
  return gantt_svg(rows, {.title = title, .unit = units ? "units" : "ms", .scale = units ? 1.0 : 1e3});
}

std::string draw_text(const Simulation& simulation, int columns) {
  std::string text;
  const double per_column = simulation.makespan > 0 ? simulation.makespan / columns : 1;
  for (std::size_t r = 0; r < simulation.ranks.size(); ++r) {
    std::string row(static_cast<std::size_t>(columns), '.');
    for (const TimedAction& t : simulation.ranks[r]) {
      if (is_transfer(t.action.op) || t.end <= t.start) continue;
      const auto begin = static_cast<std::size_t>(std::lround(t.start / per_column)),
                 end = std::min<std::size_t>(static_cast<std::size_t>(std::lround(t.end / per_column)),
                                             row.size());
      const char fill = t.action.op == Op::Forward          ? 'F'
                        : t.action.op == Op::Reduce         ? 'R'
                        : t.action.op == Op::Update         ? 'U'
                        : t.action.op == Op::BackwardWeight ? 'W'
                                                            : 'B';
      for (std::size_t c = begin; c < end; ++c) row[c] = fill;
      const std::string number = std::to_string(t.action.microbatch.value);
      if (end > begin + number.size() && is_compute(t.action.op))
        row.replace(begin + 1, number.size(), number);
    }
    text += "rank " + std::to_string(r) + " |" + row + "|\n";
  }
  return text;
}

}  // namespace millrace
