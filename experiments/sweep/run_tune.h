// Does what a search decides: trials go on from their checkpoints, each step once. LibTorch-free.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "experiments/sweep/journal.h"
#include "experiments/sweep/run_sweep.h"
#include "experiments/sweep/tune_spec.h"

namespace millrace {

inline constexpr const char* kTuneFormat = "millrace-tune-1";

/// One step of a trial.
struct TrialResult {
  TrialStep step;
  std::string folder = {};  ///< its run folder
  int member = -1;          ///< its place in its array; -1: it ran alone
  int exit_code = 0;
  std::string error;
  double metric = 0;                                   ///< NaN: it failed
  std::vector<std::pair<std::string, double>> values;  ///< final_loss, and the last evaluation's
  double runtime = 0;                                  ///< seconds; of what ran at the same time its share
  double ended = 0;                                    ///< seconds since 1970
};

struct TuneResults {
  std::vector<TrialResult> steps;  ///< in the order in which they were decided
  int best = -1;  ///< place in `steps`; of equal ones the longest, then the first trial; -1: none
  int num_failed() const;
};

/// What the steps cost, and what they would have cost if every step had begun anew.
struct TuneCost {
  std::int64_t iterations = 0, restarts_iterations = 0;
  double seconds = 0, restarts_seconds = 0;  ///< the second is an estimate from each trial's own pace
};
TuneCost cost_of(const TuneResults& results);

/// Runs what the journal does not have. `stopped` as in run_sweep. Throws ConfigError if the metric is none
/// of the model's.
TuneResults run_tune(const TuneSpec& spec, Journal& journal, Failed failed, int& stopped);

/// history.csv, trajectory.csv and summary.json.
Status write_tune_tables(const TuneSpec& spec, const TuneResults& results);
Json to_json(const TuneSpec& spec, const TuneResults& results);

/// "DIR", or "DIR@2" for a job of an array, as `millrace fuse` takes it.
std::string place_text(const TrialResult& result);

/// The run folder of the first trial of a process after `to` iterations.
std::string trial_folder(const TuneSpec& spec, int trial, int to);

}  // namespace millrace
