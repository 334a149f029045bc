// Plans improved step by step. LibTorch-free.
#pragma once

#include <vector>

#include "optimizer/planner/candidates.h"

namespace millrace {

/// Moves single cuts of a plan while that makes it faster. The plan takes `known` seconds for a microbatch
/// (infinite: not known).
void move_cuts(Candidates& candidates, const CutSpace& space, const Layout& layout, std::vector<int> cuts,
               double known);

/// Moves single layers of the best plan to the next stage or the one before, while that makes it faster. It
/// finds cuts that are no prefix of any order searched.
void move_layers(Candidates& candidates, const CostModel& model);

/// Returns replications that differ from this one by one change: a rank moves from one stage to another, a
/// stage is split in two, or two stages are joined.
std::vector<std::vector<int>> neighbours_of(const std::vector<int>& replicas);

}  // namespace millrace
