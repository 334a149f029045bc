// How far a prediction was off, and why: wrong times, or a wrong model. LibTorch-free.
#pragma once

#include <string>

#include "experiments/runs/run_data.h"

namespace millrace {

/// Seconds of a step in a run (PipeDream's own schedules: of a minibatch). `simulated_s` is the plan's
/// schedule simulated again with the mean times that this run's trace measured, `replayed_s` with every
/// action's own: predicted to simulated is the error of the profile's times, simulated to replayed what their
/// jitter costs, replayed to traced the error of the model, traced to measured that the traced steps are not
/// all.
struct ErrorSplit {
  double predicted_s = 0;  ///< 0: the plan predicts nothing
  double simulated_s = 0;
  double replayed_s = 0;
  double traced_s = 0;    ///< mean of the traced steps that were averaged
  int steps = 0;          ///< how many
  double measured_s = 0;  ///< measured_step(): the median of all steps; without a log of them `traced_s`
  double spread = 0;      ///< of the profile, from the plan

  double of_times() const { return predicted_s > 0 ? simulated_s / predicted_s - 1 : 0; }
  double of_jitter() const { return replayed_s / simulated_s - 1; }
  double of_model() const { return traced_s / replayed_s - 1; }
  double of_steps() const { return measured_s / traced_s - 1; }
};

/// Problem: no plan, no traces of three steps on every rank.
Result<ErrorSplit> split_error(const RunData& run);

/// "error: predicted ... | simulated again ... | measured ...": one line for a terminal.
std::string error_split_text(const ErrorSplit& split);
/// A section of the report; a sentence that says why where there is none.
std::string error_split_html(const RunData& run);

}  // namespace millrace
