// Gantt charts as SVG: of simulations and of measured spans alike.
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
  std::string note;  ///< right of the row, inside it where the notes have no heading
  /// The time from which to which the row's idle ground is drawn; `to` 0: to the right end. Nothing is known
  /// outside of it.
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

/// A self-contained <svg> element. Text is escaped. Idle time is the row's grey ground; the legend has what
/// the picture shows. Up to some thousand bars are drawn one by one, with tooltips; larger charts as a grid
/// of cells, each with the mean colour of what its ranks (every n-th) do in its time: below 2 MB for every
/// size.
std::string gantt_svg(const std::vector<GanttRow>& rows, const GanttOptions& options);

/// A simulation with its figures: stages and chunks, bubble and stash of each rank, messages that take time.
std::string draw_svg(const Simulation& simulation, const PipelineShape& shape, const std::string& title);

/// Returns the colour of a kind of bar, the same in all pictures. Kinds: forward, backward, input, weight,
/// reduce, update, send, receive, data, other, wait.
const char* colour_of(const std::string& kind);
const char* bar_kind_of(Op op);  ///< GanttBar::kind; "send" for all transfers

}  // namespace millrace
