// The message when no plan fits the memory, with the changes that would make one fit.
#pragma once

#include <functional>
#include <optional>

#include "optimizer/planner/planner.h"

namespace millrace {

enum class Effort {
  Best,     ///< the best plan
  AnyPlan,  ///< any plan that fits
};

/// Plans with other options or another cluster. Returns nothing if no plan fits.
using TryPlan = std::function<std::optional<Plan>(const ClusterSpec&, const PlannerOptions&, Effort)>;

/// The bytes of the fullest rank in the plan whose fullest rank holds least.
struct LeastNeed {
  Bytes bytes = 0;
  bool proved = false;  ///< no candidate needs less
};

/// Returns a Problem that names the least memory needed. Its hint lists the smallest change of each kind with
/// which `attempt` found a plan: more memory, recomputing, more ranks, another number of stages, fewer
/// microbatches, another schedule, a lighter update rule. `least` is empty if there is no plan at all.
Problem nothing_fits(const LayerGraph& graph, const ClusterSpec& cluster, PlannerOptions options,
                     const std::optional<LeastNeed>& least, const TryPlan& attempt);

}  // namespace millrace
