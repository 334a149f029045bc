// Cuts whose stages take as many layers as a time allows, for spaces too large for tables, and replications
// found in the same way. LibTorch-free.
#pragma once

#include <vector>

#include "optimizer/planner/stage_bounds.h"

namespace millrace {

struct GreedyCuts {
  std::vector<int> cuts;  ///< ends of all stages but the last; with several stages, empty: none found
  double reached_s = 0;   ///< seconds after which every stage has ended its own work; infinite: none found
};

/// Returns the cut of a linear space with the least X such that every stage ends its own work within X. The
/// fill before this work and the reduce and update behind it count. Each stage takes as many layers as X
/// allows, which is best for the stages that follow (docs/planning.md).
GreedyCuts greedy_cuts(const CostModel& model, const StageBounds& bounds, const CutSpace& space,
                       const Layout& layout);

/// Returns the replicas of each stage. For a time X it finds the fewest ranks with which all layers of a
/// linear space end within X, and it takes the least X that needs at most `ranks` ranks. Above 64 ranks only
/// some sizes of stages are tried. Returns an empty list if none was found.
std::vector<int> free_replication(const CostModel& model, const CutSpace& space, ScheduleKind kind,
                                  int microbatches, int ranks);

}  // namespace millrace
