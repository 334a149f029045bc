// Runs of an experiment whose file calls are traced, beside DLIO's emulation of them: timelines, and how
// alike they are. LibTorch-free.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "experiments/io/experiment/experiment_spec.h"
#include "experiments/sweep/journal.h"
#include "experiments/sweep/run_sweep.h"

namespace millrace {

/// A run under `trace capture`. Reads are those of the data set's files.
struct CapturedRun {
  std::string group, variant;  ///< a variant's name, or "dlio"
  int repeat = 1;
  std::string key;    ///< of the journal, and folder below the output folder
  std::string error;  ///< empty: it came to its end
  std::int64_t reads = 0, read_bytes = 0, opens = 0, written_bytes = 0;
  std::int64_t lost = 0;  ///< calls that are not in the trace
  double read_s = 0, wall_s = 0;
};

/// tracesim/1 of a variant with the original of its group; of the original: of its repeats among each other.
struct IoSimilarity {
  std::string group, variant;
  double score = 0, low = 0, high = 0;  ///< a 95 % interval where both were repeated, else `score`
  std::size_t pairs = 0;
};

/// Variables on top of this process's own.
using Environment = std::vector<std::pair<std::string, std::string>>;

/// Runs a program whose output goes to `log`.out and `log`.err. Returns what went wrong; empty: nothing did.
/// Throws Cancelled if a signal asks this process to stop.
std::string run_program(std::vector<std::string> words, const std::string& log, Environment environment = {});

/// Makes the cache of the files that a cell's runs read as the cell says. Returns the files.
std::vector<std::string> prepare_cache(const ExperimentSpec& spec, const ExperimentCell& cell);

/// Runs what the journal does not have yet: ExperimentSpec::captured repeats of each variant, and of DLIO
/// with the times of the instrumented one. Failures are recorded. Throws Cancelled.
void capture_runs(const ExperimentSpec& spec, Journal& journal, Failed failed);
/// Returns those that ran.
std::vector<CapturedRun> read_captured(const ExperimentSpec& spec, const Journal& journal);
std::vector<IoSimilarity> similarities_of(const ExperimentSpec& spec, const std::vector<CapturedRun>& runs);
/// Returns the timeline as SVG, or why there is none.
Result<std::string> timeline_of(const ExperimentSpec& spec, const CapturedRun& run);

}  // namespace millrace
