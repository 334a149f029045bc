// What to change when no plan fits the memory.
#pragma once

#include <functional>
#include <optional>

#include "optimizer/planner.h"

namespace millrace {

enum class Effort {
  Best,     ///< the best plan
  AnyPlan,  ///< the first that fits
  Quick,    ///< the first that fits, or none after a fraction of the work
};

/// Plans with other options or another cluster; nothing if that fits no better.
using TryPlan = std::function<std::optional<Plan>(const ClusterSpec&, const PlannerOptions&, Effort)>;

/// A Problem whose hint lists the smallest change of each kind with which `attempt` found a plan: more
/// memory, recomputing, more ranks, another number of stages, fewer microbatches, another schedule, a lighter
/// update rule.
Problem nothing_fits(const LayerGraph& graph, const ClusterSpec& cluster, const PlannerOptions& options,
                     const TryPlan& attempt);

}  // namespace millrace
