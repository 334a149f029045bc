// Gantt charts as SVG: of simulations and of measured spans alike.
#pragma once

#include <string>
#include <vector>

namespace millrace {

struct GanttBar {
  double start = 0;  ///< seconds (or any unit)
  double end = 0;
  std::string kind;   ///< forward, backward, wait, reduce, update, data, send
  std::string label;  ///< inside the bar if it fits; always in the tooltip
};

struct GanttRow {
  std::string label;
  std::vector<GanttBar> bars;
};

struct GanttOptions {
  std::string title;
  int width = 1100;  ///< pixels
  std::string unit = "ms";
  double scale = 1e3;  ///< shown = value * scale
  double span = 0;     ///< right end; 0: the last bar's
};

/// A self-contained <svg> element. Text is escaped.
std::string gantt_svg(const std::vector<GanttRow>& rows, const GanttOptions& options);

std::string escape_xml(const std::string& text);
const char* colour_of(const std::string& kind);

}  // namespace millrace
