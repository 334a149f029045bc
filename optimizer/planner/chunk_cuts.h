// Likely cuts for schedules with several stages per rank. LibTorch-free.
#pragma once

#include <vector>

#include "optimizer/planner/cut_space.h"
#include "optimizer/planner/layouts.h"

namespace millrace {

/// Cuts of a linear space worth simulating, likeliest first, at most `most`: by the busiest rank or wire,
/// plus what passes before the last rank starts. All cuts are compared where there are some thousands, else
/// those reached from `start` by moving one border or two neighbouring ones while that helps. `start`: ends
/// of all stages but the last, ascending.
std::vector<std::vector<int>> likely_chunk_cuts(const CostModel& model, const CutSpace& space,
                                                const Layout& layout, const std::vector<int>& start,
                                                std::size_t most);

}  // namespace millrace
