// Runs the cells of an experiment, keeps a journal of them, and writes the tables. LibTorch-free.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiments/io/experiment/captured_runs.h"
#include "experiments/io/experiment/experiment_spec.h"
#include "experiments/io/instrument/distribution_fit.h"
#include "experiments/sweep/journal.h"
#include "experiments/sweep/run_sweep.h"

namespace millrace {

inline constexpr const char* kExperimentFormat = "millrace-experiment-1";

/// A step's time is split by rank and phase: mean seconds of a step after the first.
using PhaseTimes = std::vector<std::pair<std::string, double>>;

struct CellResult {
  std::size_t cell = 0;  ///< in ExperimentSpec::cells
  int exit_code = 0;
  std::string error;                 ///< empty: it came to its end
  double cpu_s = 0;                  ///< processor time of all its processes, with their start
  double wall_s = 0;                 ///< with the start of its processes
  double run_s = 0;                  ///< its steps, evaluations and checkpoints
  double samples_per_s = 0;          ///< median
  double compute_s = 0;              ///< forwards, backwards and updates of all ranks
  double drawn_s = 0, waited_s = 0;  ///< sleep: what the rank that wrote the summary was to wait, and did
  std::vector<double> step_s;        ///< of the first rank, without its first step
  std::vector<PhaseTimes> ranks;     ///< by rank: parts of a step that follow each other
  std::vector<PhaseTimes> beside;    ///< by rank: what the trace has besides, of a traced run
  std::optional<double> cached_before, cached_after;  ///< shares of the data's pages; none: no files
};

/// How a variant compares with the original of the same group and repeat, and a sleeping one also with the
/// instrumented one whose times it has.
struct Comparison {
  std::string group, variant, beside;
  std::string what;            ///< "run", "step", "compute", "cpu"
  std::vector<double> ratios;  ///< by repeat
  double mean = 0, least = 0, most = 0;
};

struct ExperimentResults {
  std::vector<CellResult> cells;  ///< those that ran, in the order of the spec
  std::vector<Comparison> comparisons;
  std::vector<CapturedRun> captured{};
  std::vector<IoSimilarity> alike{};
  int num_failed() const;
};

/// Runs what the journal does not have yet. `stopped`: the signal that ended it early. A cell that fails is
/// recorded, and the others run. Throws ConfigError if nothing can be started.
ExperimentResults run_experiment(const ExperimentSpec& spec, Journal& journal, Failed failed, int& stopped);

/// Fits of the step times of one variant of a group; nothing where there are too few.
std::optional<FamilyFit> best_fit(const std::vector<double>& values);

/// cells.csv, steps.csv, phases.csv, comparisons.csv, fits.csv; with captured runs calls.csv, similarity.csv.
Status write_experiment_tables(const ExperimentSpec& spec, const ExperimentResults& results);

}  // namespace millrace
