// A sweep's fused jobs as the planner divides them: how many in an array, how many arrays at once, in how
// many rounds, on which stages. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "experiments/sweep/settings.h"
#include "experiments/sweep/swept_job.h"
#include "runtime/base/units.h"
#include "runtime/plan/plan.h"

namespace millrace {

/// `plan:` of sweep.yaml.
struct SweepPlanSpec {
  std::string profile;  ///< of `millrace profile --jobs`
  int ranks = 1;
  Bytes memory = 0;  ///< of a rank; 0: no limit
};

struct SweepPlan {
  Plan plan;            ///< for exactly the jobs of the sweep; of several rounds where it takes them
  std::string reasons;  ///< the ways to divide the jobs, and why this one
};

/// The plan of `millrace plan --jobs` for `settings` of `job`: with its schedule, microbatches, clipping and
/// the rule that keeps most. Problem: the profile cannot be read, is of another model, precision or
/// microbatch, or nothing fits.
Result<SweepPlan> plan_sweep(const SweepPlanSpec& spec, const SweptJob& job,
                             const std::vector<JobSettings>& settings);

/// `job` by the plan in `file`: without what a plan decides.
SweptJob planned_job(const SweptJob& job, const std::string& file);

}  // namespace millrace
