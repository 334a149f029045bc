// Likely cuts for schedules with several stages per rank. LibTorch-free.
#pragma once

#include <vector>

#include "optimizer/planner/cut_space.h"
#include "optimizer/planner/layouts.h"

namespace millrace {

/// Returns cuts of a linear space that are worth simulating, likeliest first, at most `most`. The estimate is
/// the time of the busiest rank or wire plus the time before the last rank starts. If there are at most some
/// thousand cuts, all are compared. Else the search begins at `start` and moves one border or two
/// neighbouring ones while that helps. `start` has the ends of all stages but the last, in ascending order.
std::vector<std::vector<int>> likely_chunk_cuts(const CostModel& model, const CutSpace& space,
                                                const Layout& layout, const std::vector<int>& start,
                                                std::size_t most);

}  // namespace millrace
