// PipeDream's own answers as candidates of our planner, so that it is never worse under our cost model.
#pragma once

#include <vector>

#include "optimizer/cost/cost_model.h"

namespace millrace {

/// Returns the stages that PipeDream's planner finds for this graph on this cluster: with and without charged
/// transfers, with and without replication. Stages are on consecutive ranks. `states` is the number of places
/// where the graph can be cut, at least as many as PipeDream finds. Returns nothing if solving would take
/// long.
std::vector<std::vector<CutStage>> pipedream_seeds(const LayerGraph& graph, const ClusterSpec& cluster,
                                                   int states);

}  // namespace millrace
