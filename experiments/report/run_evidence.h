// The evidence of a run that a report shows: metrics, settings, the machine; several runs side
// by side.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "experiments/runs/run_data.h"

namespace millrace {

/// A metric of the evaluations, besides the loss: "top1", "perplexity", "bleu", ...
struct MetricCurve {
  std::string name;
  std::vector<std::pair<double, double>> evaluations;  ///< steps done, value
  std::vector<std::pair<double, double>> training;     ///< the same of the steps; empty: they do not have it
};
/// In the order of the evaluations' values. A run of several jobs has none here.
std::vector<MetricCurve> metric_curves(const RunData& run);
/// How steady the times of the steps after the first were, and on which processor: "the median of 40 steps,
/// of which the middle 80 % took 11 ms to 14 ms, on ..."; empty without steps.
std::string steadiness_text(const RunData& run);
/// From what profile the prediction is: "profile of 3 hours ago, on ..."; where that is of another processor
/// or more than a day older than the run, a sentence that says so. Empty: the plan does not say.
std::string profile_text(const RunData& run);
/// The heading of a metric: "Top-1" of top1.
std::string metric_title(const std::string& name);
/// Shares as "93.1 %", other values with four digits.
std::string metric_text(const std::string& name, double value);

/// Names and values of what decided the run: its settings, plan and machine. Empty parts are left out.
using Facts = std::vector<std::pair<std::string, std::string>>;
Facts settings_of(const RunData& run);
Facts machine_of(const RunData& run);

/// A card with a table: what was run, on what, when and by which command.
std::string what_was_run_html(const RunData& run);

/// Cards that show `run` beside `others`: settings that differ first, then times with intervals, results,
/// and curves over each other.
std::string side_by_side_html(const RunData& run, const std::vector<RunData>& others);

/// A page with a line for each run, newest first: how it ended, what it was and what came of it. `links`:
/// where the file of each run's page is, seen from this page. `reload_s`: HtmlPage::reload_s.
std::string index_html(const std::string& folder, const std::vector<const RunData*>& runs,
                       const std::vector<std::string>& links, int reload_s = 0);

}  // namespace millrace
