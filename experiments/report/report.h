// A run as one HTML file: what was predicted and what happened. Nothing is loaded from elsewhere; one script
// zooms the timeline.
#pragma once

#include <string>
#include <vector>

#include "experiments/runs/run_data.h"
#include "runtime/drawing/gantt.h"

namespace millrace {

/// The times of one stage as the plan predicts them and as the step logs show them. Seconds for one
/// microbatch on one rank; 0: unknown.
struct StageComparison {
  int stage = 0;
  double predicted_forward_s = 0, measured_forward_s = 0;
  double predicted_backward_s = 0, measured_backward_s = 0;
  Bytes predicted_peak_bytes = 0, measured_peak_bytes = 0;
  int predicted_versions = 0, measured_versions = 0;
};

/// Step time: of a step with a flushing schedule, of a minibatch with the asynchronous one.
struct PlanComparison {
  double predicted_step_s = 0;
  double measured_step_s = 0;  ///< median without the first step
  std::vector<StageComparison> stages;
};
PlanComparison compare(const RunData& run);
/// PlanComparison::measured_step_s by itself: the one measured time of a step that everything speaks of. 0:
/// no steps.
double measured_step(const RunData& run);

/// The plan's schedule under its own predictions; of the asynchronous one the first `microbatches`
/// minibatches. Empty if the plan predicts nothing.
std::vector<GanttRow> simulated_rows(const RunData& run, int microbatches = 0);
/// Returns all ranks of one traced step on one time line: the step whose time is nearest the median
/// (asynchronous: the nearest traced window). 0 is where the first rank's work begins, and waiting before
/// it is left out. A rank without a trace has an empty row that says so. Empty: there is no trace at all.
std::vector<GanttRow> measured_rows(const RunData& run);

/// Returns how much the job had done when a rank wrote a line, counted from 1: steps, or minibatches where
/// each has its update.
std::int64_t done_after(const RunData& run, const RankRun& rank, const StepLine& line);

/// How the run ended, where that is not as it should: "failed after 334 steps: rank 1: ...". Else empty.
std::string end_text(const RunData& run);

struct PageOptions {
  std::vector<RunData> against{};  ///< runs to show beside it
  int reload_s = 0;                ///< seconds after which a browser reads the page again; 0: never
};
/// The whole page. Works with any part missing; all text from files is escaped.
std::string report_html(const RunData& run, const PageOptions& options = {});

}  // namespace millrace
