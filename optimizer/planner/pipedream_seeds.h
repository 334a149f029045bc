// PipeDream's own answers as candidates of our planner, so that it is never worse under our cost model.
#pragma once

#include <vector>

#include "optimizer/cost/cost_model.h"

namespace millrace {

/// The stages PipeDream's planner finds for this graph on this cluster: with and without charging transfers,
/// with and without replication. `states`: places where the graph can be cut, at least as many as
/// PipeDream's; nothing above what it solves in a moment. Stages are on consecutive ranks.
std::vector<std::vector<CutStage>> pipedream_seeds(const LayerGraph& graph, const ClusterSpec& cluster,
                                                   int states);

}  // namespace millrace
