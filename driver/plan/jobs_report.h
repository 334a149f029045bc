// The text of `millrace plan --jobs`: the ways to divide the jobs, and why the best one is best.
#pragma once

#include <optional>
#include <string>

#include "optimizer/planner/plan_jobs.h"
#include "runtime/base/json.h"

namespace millrace {

/// A line for each way, the best first, at most `most` of them.
std::string jobs_table(const JobsAnswer& answer, int total, std::size_t most);
/// Compares the best with the next one, and lists omitted and unmeasured sizes. `free`: the best
/// without a memory limit, where that is another.
std::string jobs_reasons(const JobsAnswer& answer, const LayerGraph& profile, int total,
                         const std::optional<JobsCandidate>& free);
Json jobs_json(const JobsAnswer& answer, int total);

}  // namespace millrace
