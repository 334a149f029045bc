// The results of a search, and their tables. LibTorch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "experiments/sweep/tune_spec.h"

namespace millrace {

inline constexpr const char* kTuneFormat = "millrace-tune-1";

/// One step of a trial.
struct TrialResult {
  TrialStep step;
  int trained_as = 0;       ///< the first trial with the same settings; it was trained for all of them
  std::string folder = {};  ///< the run folder in which it was done
  int member = -1;          ///< its place in its array; -1: it ran alone
  int iterations = 0;       ///< of that run; of an array less than the whole step, if it began in others
  int exit_code = 0;
  std::string error;
  double metric = 0;                                   ///< NaN: it failed
  std::vector<std::pair<std::string, double>> values;  ///< final_loss, and the last evaluation's
  double runtime = 0;                                  ///< seconds; of what ran at the same time its share
  double ended = 0;                                    ///< seconds since 1970
};

/// The value called `metric`, or, of a model with several heads, of the one head that has it ("class.top1"
/// for top1); nullopt: none has, or several.
std::optional<double> value_of_metric(const TrialResult& result, const std::string& metric);

struct TuneResults {
  std::vector<TrialResult> steps;  ///< in the order in which they were decided
  int best = -1;                   ///< place in `steps`; -1: none
  int num_failed() const;          ///< steps that failed, or whose loss or metric is not finite
};

/// Returns the trials that failed in any step. None of their scores counts.
std::set<int> failed_trials(const std::vector<TrialResult>& steps);

/// A result by its end, and the best metric until then.
struct BestUntil {
  double ended = 0;  ///< seconds since 1970
  double metric = 0;
};
/// Returns a point for each step of the trials that have not failed, in the order of time.
std::vector<BestUntil> trajectory_of(const TuneSpec& spec, const std::vector<TrialResult>& steps);

/// Greater is better; -inf: it failed.
double score_of(const TuneSpec& spec, const TrialResult& result);
/// Place of the best; of equal ones the longest, then the first trial; -1: none. A trial that failed in any
/// step is none.
int best_of(const TuneSpec& spec, const std::vector<TrialResult>& steps);

/// The iterations that the steps cost (equal trials were trained once), and what they would have cost if
/// every step had begun anew.
struct TuneCost {
  std::int64_t iterations = 0, restarts_iterations = 0;
  std::int64_t runs = 0, run_iterations = 0;  ///< of processes: an iteration of an array counts once
  double seconds = 0, restarts_seconds = 0;   ///< the second is an estimate from each trial's own pace
};
TuneCost cost_of(const TuneResults& results);

/// history.csv, trajectory.csv and summary.json.
Status write_tune_tables(const TuneSpec& spec, const TuneResults& results);
Json to_json(const TuneSpec& spec, const TuneResults& results);

/// "DIR", or "DIR@2" for a job of an array, as `millrace fuse` takes it.
std::string place_text(const std::string& folder, int member);

}  // namespace millrace
