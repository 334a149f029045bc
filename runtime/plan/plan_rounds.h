// Reads, writes, checks and describes the rounds of a plan.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/result.h"
#include "runtime/plan/plan.h"

namespace millrace {

std::vector<PlanRound> rounds_from(const Json& list, Problems& problems);
Json rounds_json(const std::vector<PlanRound>& rounds);
/// Returns an error for inconsistent rounds: more arrays than jobs, a first round whose number of arrays
/// differs from the plan's, or a later round with more arrays.
Problems round_problems(const Plan& plan);

/// Returns the number of jobs in each round, "4, 3"; at most the first `most` rounds.
std::string jobs_of_rounds(const std::vector<PlanRound>& rounds,
                           std::size_t most = std::numeric_limits<std::size_t>::max());
/// Returns "7 jobs in 2 rounds: 4 in 2 arrays, then 3 in 2 arrays".
std::string rounds_text(const std::vector<PlanRound>& rounds);

}  // namespace millrace
