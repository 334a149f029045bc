// The job that takes trials on by some iterations: one trial, or several as an array. LibTorch-free.
#pragma once

#include <map>
#include <string>

#include "experiments/sweep/next_array.h"
#include "experiments/sweep/run_pool.h"
#include "experiments/sweep/tune_journal.h"

namespace millrace {

/// Trains into `folder`. `places`: where the trials are that have begun, each with its OpenStep::at
/// iterations; from wherever they are they become the array that goes on, new trials join it, nobody else is
/// in it. Throws ConfigError if the settings of the trials make no job.
PooledJob trial_run(const TuneSpec& spec, const ArrayRun& run, const std::map<int, TrialPlace>& places,
                    const std::string& folder);

/// Returns the folder that trial_run() keeps beside `folder` while it runs. It holds the array's checkpoint
/// to begin with.
std::string joined_folder(const std::string& folder);
bool is_joined_folder(const std::string& folder);

}  // namespace millrace
