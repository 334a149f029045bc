// Plans for many trainings of one model: how many jobs form an array, how many arrays share the pipeline, and
// how many rounds that takes. LibTorch-free.
#pragma once

#include <vector>

#include "optimizer/cost/round_cost.h"
#include "optimizer/planner/planner.h"

namespace millrace {

/// A way to divide the jobs, and the best plan found for it.
struct JobsCandidate {
  Plan plan;                  ///< its rounds say how the jobs are divided
  int jobs = 1;               ///< jobs of the largest array
  int arrays = 1;             ///< arrays in the pipeline at once
  bool interpolated = false;  ///< an array's size lies between measured ones
  double total_s = 0;         ///< seconds of a step of every job: the steps of all rounds
  double compute_s = 0;       ///< the part of `total_s` in which ranks compute if no rank ever waits
  double idle = 0;            ///< share of the ranks' time in which they do not compute
  Bytes peak_bytes = 0;       ///< peak memory of the fullest rank, with `arrays` arrays of `jobs` jobs
};

struct JobsAnswer {
  std::vector<JobsCandidate> candidates;  ///< best first; never empty
  int ways = 0;                           ///< number of ways to divide the jobs
  int not_fitting = 0;                    ///< ways for which no plan fits the memory
  int no_better = 0;                      ///< ways left out: their computing alone exceeds the best total
};

/// Returns up to two divisions into rounds of at most `arrays` arrays of at most `largest` jobs. One has full
/// rounds and a last round with the jobs that are left. The other is as even as possible. A division must
/// really use `largest` and `arrays` in its first round. Returns nothing if there are too few jobs.
std::vector<std::vector<PlanRound>> divisions_of(int jobs, int largest, int arrays);

/// Finds the way to train `jobs` jobs for the same number of steps in the least time. It compares sizes of
/// arrays that `profile` has or that lie between those, numbers of arrays at once, rounds, and plans for
/// them. A plan is made for arrays of the largest size, and all rounds run by it. `options.microbatches`
/// counts the microbatches of each job and is at least 1. Memory is counted for all arrays at once, each as
/// large as the largest. Equal times are decided by measured sizes, then fewer rounds, then less memory.
/// Problem: wrong options, no schedule for these, nothing fits even job by job (with the hints of
/// explain_plan), or a device kind's profile that lacks a size.
Result<JobsAnswer> plan_jobs(const LayerGraph& profile, const ClusterSpec& cluster,
                             const PlannerOptions& options, int jobs);

/// Returns `options` for `arrays` arrays at once, as the planner takes them.
PlannerOptions options_of(const PlannerOptions& options, int arrays);

}  // namespace millrace
