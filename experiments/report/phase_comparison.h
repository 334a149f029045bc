// Runs side by side by phase: what a step spends on each, and by how much they differ.
#pragma once

#include <string>
#include <vector>

#include "experiments/runs/run_data.h"

namespace millrace {

/// A phase of two runs. Seconds of a step, mean over the ranks, median over the steps after the first.
struct PhaseDifference {
  std::string phase;
  double first_s = 0, other_s = 0;
  double more_s = 0;             ///< other - first
  double low_s = 0, high_s = 0;  ///< 95 % interval of more_s: steps of both runs drawn again, 400 times
};
/// Phases that neither run has are left out. The same runs give the same numbers. The interval takes steps to
/// be independent of each other. Empty: a run has no steps.
std::vector<PhaseDifference> phase_differences(const RunData& first, const RunData& other);

/// A card for each of `others`; empty without them.
std::string phases_side_by_side_html(const RunData& run, const std::vector<RunData>& others);

}  // namespace millrace
