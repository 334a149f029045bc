// Likely cuts for schedules with several stages per rank. LibTorch-free.
#pragma once

#include <vector>

#include "optimizer/planner/cut_space.h"
#include "optimizer/planner/layouts.h"

namespace millrace {

/// Returns cuts of a linear space that are worth simulating, likeliest first, at most `most`. The estimate is
/// the time of the busiest rank or wire plus the time before the last rank starts. A tensor that skips stages
/// goes from its stage to each one that reads it, and costs nothing between two stages of one rank. If there
/// are at most some thousand cuts, all are compared. Else the search begins at `start` and moves one border
/// or two neighbouring ones while that helps. `start` has the ends of all stages but the last, in ascending
/// order. In a V, where tensors skip stages, it begins at folded cuts too: a rank has the layers on both
/// sides of those of the next rank, so that what skips the latter stays where it is.
std::vector<std::vector<int>> likely_chunk_cuts(const CostModel& model, const CutSpace& space,
                                                const Layout& layout, const std::vector<int>& start,
                                                std::size_t most);

}  // namespace millrace
