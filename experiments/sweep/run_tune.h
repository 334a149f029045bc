// Does what a search decides: trials go on from their checkpoints, each step once. LibTorch-free.
#pragma once

#include "experiments/sweep/journal.h"
#include "experiments/sweep/run_sweep.h"
#include "experiments/sweep/tune_results.h"

namespace millrace {

/// Runs what the journal does not have. `stopped` as in run_sweep. Throws ConfigError if the metric is none
/// of the model's.
TuneResults run_tune(const TuneSpec& spec, Journal& journal, Failed failed, int& stopped);

}  // namespace millrace
