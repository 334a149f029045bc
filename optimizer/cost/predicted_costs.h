// The predictions of a plan as costs for the simulator, for use without a profile. LibTorch-free.
#pragma once

#include "runtime/plan/cluster_spec.h"
#include "runtime/plan/plan.h"
#include "runtime/schedule/schedule.h"

namespace millrace {

/// Returns whether the plan has predicted times. A plan written by hand has none: all its times are 0.
bool has_predicted_times(const Plan& plan);

/// Returns the costs of each stage: its seconds from the plan, the all-reduce of its parameters, and the
/// slowest transfer between the ranks of two stages for the bytes of their crossing. Half of a backward
/// counts as input gradient, half as weight gradient. `shape` is shape_of(plan); the cluster has the plan's
/// ranks.
ScheduleCosts predicted_costs(const Plan& plan, const PipelineShape& shape, const ClusterSpec& cluster);

}  // namespace millrace
