// What a run was and what came of it, as a report shows it: metrics, settings, the machine; several runs side
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

}  // namespace millrace
