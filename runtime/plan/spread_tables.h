// Hybrid parallelism: the model's tables (embeddings of data features) spread over ranks, all other layers
// replicated on each of them.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/layer_graph.h"
#include "runtime/plan/plan.h"

namespace millrace {

/// The properties of a layer that determine its placement.
struct SpreadLayer {
  std::string name;
  Bytes table_bytes = 0;  ///< 0: it is not a table
  /// For a layer that is not a table: whether its inputs depend on one, directly or through other layers.
  bool needs_table = false;
};

/// Makes a plan of ScheduleKind::SpreadTables for `ranks` ranks. Stage r holds the tables of rank r. The next
/// stage has the layers that need no table, and the last one all others; every rank has a replica of both.
/// Largest tables are placed first, each on the rank with the fewest bytes (on a tie the first). `layers`
/// must be in execution order. Returns an error for fewer than two ranks, fewer tables than ranks, or no
/// layer that uses tables.
Result<Plan> spread_tables_plan(const std::string& model, const std::vector<SpreadLayer>& layers, int ranks,
                                int microbatches);
/// Makes the plan for a profile. Its tables are embeddings that no layer feeds and that share their
/// parameters with no layer.
Result<Plan> spread_tables_plan(const LayerGraph& graph, int ranks, int microbatches);

/// Returns for example "tables: rank 0: emb_l.2, emb_l.5 (1.2 MB); rank 1: emb_l.0 (0.9 MB); ...".
std::string text_of_spread_tables(const Plan& plan);

}  // namespace millrace
