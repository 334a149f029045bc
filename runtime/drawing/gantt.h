// Gantt charts as SVG, for simulations and for measured spans.
#pragma once

#include <string>
#include <vector>

#include "runtime/drawing/svg.h"
#include "runtime/schedule/schedule.h"

namespace millrace {

struct GanttBar {
  double start = 0;  ///< seconds (or any unit)
  double end = 0;
  std::string kind;   ///< a kind of colour_of; waiting is idle time with a tooltip
  std::string label;  ///< inside the bar if it fits; always in the tooltip
  int tint = 0;       ///< 0: the full colour; 1, 2, ...: lighter (the rank's further stages); see tints
};

struct GanttRow {
  std::string label;
  std::vector<GanttBar> bars;
  std::string note;  ///< right of the row; inside the row if GanttOptions::notes is empty
  /// The row's idle ground is drawn from `from` to `to`, because nothing is known outside of it. `to` 0: the
  /// right end.
  double from = 0, to = 0;
};

/// A message on its way from one row to another.
struct GanttArrow {
  std::size_t from = 0;
  double sent = 0;
  std::size_t to = 0;
  double arrived = 0;
};

struct GanttOptions {
  std::string title;
  std::string subtitle;  ///< the figures
  std::string notes;     ///< heading of the rows' notes
  int width = 1100;      ///< pixels
  std::string unit = "ms";
  double scale = 1e3;  ///< shown = value * scale
  double span = 0;     ///< right end; 0: the last bar's
  std::vector<GanttArrow> arrows;
  std::vector<std::string> tints;  ///< legend of the tints, if there are several
};

/// Returns a self-contained <svg> element. Text is escaped. Idle time is the row's grey ground. The legend
/// lists what the picture shows. Up to some thousand bars are drawn one by one, with tooltips. A larger chart
/// is a grid of cells that stays below 2 MB. A cell has the mean colour of what its ranks (every n-th) do in
/// its time.
std::string gantt_svg(const std::vector<GanttRow>& rows, const GanttOptions& options);

/// Draws a simulation with its figures: stages and chunks, bubble and stash of each rank, and messages that
/// take time.
std::string draw_svg(const Simulation& simulation, const PipelineShape& shape, const std::string& title);

/// Returns the colour of a kind of bar, the same in all pictures. Kinds: forward, backward, input, weight,
/// reduce, update, send, receive, data, other, wait.
const char* colour_of(const std::string& kind);
const char* bar_kind_of(Op op);  ///< GanttBar::kind; "send" for all transfers

}  // namespace millrace
