// The rounds of a plan in its file, and what is wrong with them.
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
/// More arrays than jobs, another number of arrays than the plan's in the first round, more in another.
Problems round_problems(const Plan& plan);

/// "4, 3": the jobs of each round; of more than `most` rounds the first ones.
std::string jobs_of_rounds(const std::vector<PlanRound>& rounds,
                           std::size_t most = std::numeric_limits<std::size_t>::max());
/// "7 jobs in 2 rounds: 4 in 2 arrays, then 3 in 2 arrays".
std::string rounds_text(const std::vector<PlanRound>& rounds);

}  // namespace millrace
