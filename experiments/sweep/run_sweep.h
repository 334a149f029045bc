// Does what a sweep says, keeps a journal of what is done, and writes the tables. LibTorch-free.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "experiments/sweep/fused_job.h"
#include "experiments/sweep/job_outcome.h"
#include "experiments/sweep/journal.h"
#include "experiments/sweep/run_pool.h"
#include "experiments/sweep/sweep_spec.h"
#include "experiments/sweep/throughput.h"

namespace millrace {

inline constexpr const char* kSweepFormat = "millrace-sweep-1";

/// The result of a job in one mode.
struct JobResult {
  int job = 0;
  int member = -1;  ///< its place in its array; -1: it ran alone
  SweepMode mode = SweepMode::Serial;
  int exit_code = 0;
  std::string error;
  std::string folder;  ///< its run folder
  double final_loss = 0;
  std::vector<std::pair<std::string, double>> metrics;  ///< of the last evaluation
  Counters counters;                                    ///< fused: a job's share of its array's
  JobWork work{};
};
/// The samples that most of the jobs read that came to their end; 0: none did. Times of a job that read
/// others are those of other work.
std::int64_t usual_samples(const std::vector<JobResult>& jobs);

/// One measurement: B jobs of a mode at a time.
struct Measurement {
  SweepMode mode = SweepMode::Serial;
  int jobs = 1;
  int unfused = 0;  ///< layers of the partial-fusion curve that are left unfused
  int repeat = 0;
  int exit_code = 0;
  std::string error;
  double samples_per_s = 0;
  double cpu_s = 0;
  std::optional<std::int64_t> instructions;
  HostUse use;
  std::string folder;
};

/// All that a sweep has found; read back from its folder.
struct SweepResults {
  std::vector<JobResult> jobs;
  std::vector<Measurement> measurements;
  std::vector<std::pair<SweepMode, int>> largest;  ///< B by mode
  int num_failed() const;
};

enum class Failed { Keep, Retry };

/// Runs what the journal does not have yet. `stopped` is set if a signal ended it early: what was done is
/// kept. Throws ConfigError if processes cannot be started, OutOfMemory if not even one job fits.
SweepResults run_sweep(const SweepSpec& spec, Journal& journal, Failed failed, int& stopped);

/// results.csv, counters.csv, throughputs.csv and partially_fused.csv (those that there is something for).
Status write_tables(const SweepSpec& spec, const SweepResults& results);

/// Speed-up curves: of the modes, and over the number of unfused layers. `serial` is the mean of B = 1.
struct Curves {
  std::vector<ModeCurves> modes;
  ModeCurves partial;
  double serial = 0;
  int most = 1;
};
Curves curves_of(const SweepResults& results, const std::string& precision);
std::string precision_of(const SweepSpec& spec);

}  // namespace millrace
