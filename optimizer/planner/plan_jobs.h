// Plans for many trainings of one model: how many jobs are an array, how many arrays fill the pipeline in
// turn, and how many rounds that takes. LibTorch-free.
#pragma once

#include <vector>

#include "optimizer/cost/round_cost.h"
#include "optimizer/planner/planner.h"

namespace millrace {

/// A way to divide the jobs, and the best plan found for it.
struct JobsCandidate {
  Plan plan;                  ///< its rounds say how the jobs are divided
  int jobs = 1;               ///< of the largest array
  int arrays = 1;             ///< in the pipeline at once
  bool interpolated = false;  ///< an array's size lies between measured ones
  double total_s = 0;         ///< a step of every job: the steps of all rounds
  double compute_s = 0;       ///< of it, what the ranks compute if nothing ever waits
  double idle = 0;            ///< share of the ranks' time in which they do not compute
  Bytes peak_bytes = 0;       ///< of the fullest rank, with `arrays` arrays of `jobs`
};

struct JobsAnswer {
  std::vector<JobsCandidate> candidates;  ///< best first; never empty
  int ways = 0;                           ///< to divide the jobs that were looked at
  int not_fitting = 0;                    ///< of them: no plan fits the memory
  int no_better = 0;                      ///< left out: their computing alone takes longer than the best
};

/// Rounds of arrays of at most `largest` jobs, at most `arrays` of them in a round: full rounds and what is
/// left, and as even as possible where that needs as large arrays. Empty: there are fewer jobs.
std::vector<std::vector<PlanRound>> divisions_of(int jobs, int largest, int arrays);

/// Least time for `jobs` trainings of the same number of steps: over sizes of arrays that `profile` has or
/// that lie between those, arrays at once, rounds, and the plans of explain_plan() for these. A plan is
/// looked for with the arrays of the largest size; all rounds run by it. `options.microbatches`: of each job,
/// at least 1. Memory: that of the cost model for all arrays at once, each as large as the largest. Equal
/// times: sizes that were measured, then fewer rounds, less memory. Problem: wrong options, no schedule for
/// these, nothing fits even job by job (with the hints of explain_plan), kinds of devices whose profiles lack
/// a size.
Result<JobsAnswer> plan_jobs(const LayerGraph& profile, const ClusterSpec& cluster,
                             const PlannerOptions& options, int jobs);

/// `options` for `arrays` arrays at once: what explain_plan() is asked.
PlannerOptions options_of(const PlannerOptions& options, int arrays);

}  // namespace millrace
