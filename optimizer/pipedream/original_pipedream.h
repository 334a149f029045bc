// PipeDream's planner with the faults of its own programme. Internal to optimizer/.
#pragma once

#include "optimizer/pipedream/pipedream_planner.h"

namespace millrace {

/// Returns the answer of the original for options that plan_pipedream has checked. The caller fills
/// `data_parallel_time_s`. A stage may hold no layer (see the .cpp). Problem: a cycle, too many states, no
/// plan, or an error of Python's in the original. Takes O(states^3 machines^2) for each level but the last.
Result<PipeDreamAnswer> plan_as_original(const PipeDreamGraph& graph, const PipeDreamOptions& options);

}  // namespace millrace
