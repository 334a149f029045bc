// Cuts that take as many layers as a time allows, for spaces too large for tables, and replications found the
// same way. LibTorch-free.
#pragma once

#include <vector>

#include "optimizer/planner/stage_bounds.h"

namespace millrace {

struct GreedyCuts {
  std::vector<int> cuts;  ///< ends of all stages but the last; empty with several stages: none found
  double reached_s = 0;   ///< every stage ends its own work by then; infinite: none found
};

/// The cut of a linear space of least X such that every stage ends its own work, the fill before and the tail
/// behind it counted, within X. Taking as many layers as X allows is best for the stages that follow
/// (docs/planning.md).
GreedyCuts greedy_cuts(const CostModel& model, const StageBounds& bounds, const CutSpace& space,
                       const Layout& layout);

/// Replications from the other side: the fewest of `ranks` ranks with which all layers of a linear space end
/// within X, for the least X that needs no more ranks than there are; sizes in steps above 64 ranks. Empty:
/// none found.
std::vector<int> free_replication(const CostModel& model, const CutSpace& space, ScheduleKind kind,
                                  int microbatches, int ranks);

}  // namespace millrace
