// sweep.yaml: a job, what of it varies, how the jobs are run, and what is measured. LibTorch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "experiments/sweep/sweep_plan.h"
#include "experiments/sweep/swept_file.h"
#include "runtime/base/choices.h"

namespace millrace {

/// serial: one job after another. concurrent: as many processes as jobs, pinned to cores. fused: jobs as one
/// array.
enum class SweepMode { Serial, Concurrent, Fused };
constexpr auto names_of(SweepMode) {
  return std::to_array<std::string_view>({"serial", "concurrent", "fused"});
}

/// HFTA's measurement: throughput over the number of jobs B. Defaults are its.
struct MeasureSpec {
  int epochs = 5;
  std::int64_t iterations = 1000;  ///< steps of an epoch
  int warmup_epochs = 1;           ///< at the start of each process, not counted
  int repeats = 3;
  std::vector<int> sizes;                      ///< B to measure; empty: found
  int fused_sizes = 10, concurrent_sizes = 5;  ///< how many B are measured where they are found
  int most = 0;                                ///< greatest B to try; 0: the number of jobs
  // -- dry runs: do B jobs run? --
  int dry_epochs = 0;  ///< 0: fused 3, else 2
  std::int64_t dry_iterations = 10;
  int dry_repeats = 0;      ///< times in a row that they must; 0: fused 1, else 10
  std::int64_t memory = 0;  ///< bytes of all jobs together; 0: 80 % of what is available
};

struct SweepSpec : SweptFile {
  Varied varied;
  int num_jobs = 1;
  std::vector<SweepMode> modes{SweepMode::Serial};
  int at_once = 0;  ///< concurrent: processes for the results; 0: as cores are there for
  int array = 0;    ///< fused: jobs of an array at most; 0: all
  std::optional<SweepPlanSpec> plan_from;  ///< fused: the planner divides the jobs
  std::optional<SweepPlan> plan;           ///< what it says
  bool results = true;                     ///< train every job to its end
  bool measures = false;
  MeasureSpec measure;
  std::vector<std::string>
      unfused;  ///< layers of the partial-fusion curve, in the order they are left unfused

  bool has(SweepMode mode) const;
  JobSettings settings(int job) const { return settings_of(varied, seed, static_cast<std::size_t>(job)); }
};

/// Every problem at once, with `file:line`: unknown keys with the nearest name, values that the job's flags
/// do not take, distributions without width, lists of different lengths, what cannot be fused.
Result<SweepSpec> load_sweep(const std::string& path);

/// Problems of settings that vary in an array and may not.
Problems infusible_problems(const Varied& varied);

}  // namespace millrace
