// Plans improved step by step. LibTorch-free.
#pragma once

#include <vector>

#include "optimizer/planner/candidates.h"

namespace millrace {

/// Moves single cuts of a plan that takes `known` seconds for a microbatch (infinite: not known) while that
/// helps.
void move_cuts(Candidates& candidates, const CutSpace& space, const Layout& layout, std::vector<int> cuts,
               double known);

/// Single layers of the best plan from one stage to the next or the one before, while that helps: cuts that
/// are no prefix of any order searched.
void move_layers(Candidates& candidates, const CostModel& model);

/// One rank from one stage to another; a stage split in two; two stages joined.
std::vector<std::vector<int>> neighbours_of(const std::vector<int>& replicas);

}  // namespace millrace
