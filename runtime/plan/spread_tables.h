// Hybrid parallelism: the tables of a model (embeddings of what the data has) spread over ranks, all else
// replicated on each of them.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/layer_graph.h"
#include "runtime/plan/plan.h"

namespace millrace {

/// A layer, as the placement must know it.
struct SpreadLayer {
  std::string name;
  Bytes table_bytes = 0;  ///< 0: it is no table
  /// For a layer that is no table: it computes with one, directly or through other layers.
  bool needs_table = false;
};

/// Makes a plan of ScheduleKind::SpreadTables for `ranks` ranks. Stage r holds the tables of rank r. The next
/// stage has the layers that need no table, and the last one all others; every rank has a replica of both.
/// Largest tables are placed first, each on the rank with the fewest bytes (of equal ones the first).
/// `layers` are in the order of execution. Problems: less than two ranks, fewer tables than ranks, nothing
/// that computes with tables.
Result<Plan> spread_tables_plan(const std::string& model, const std::vector<SpreadLayer>& layers, int ranks,
                                int microbatches);
/// The same of a profile. Its tables are embeddings that no layer feeds and that share their parameters with
/// no layer.
Result<Plan> spread_tables_plan(const LayerGraph& graph, int ranks, int microbatches);

/// Returns for example "tables: rank 0: emb_l.2, emb_l.5 (1.2 MB); rank 1: emb_l.0 (0.9 MB); ...".
std::string text_of_spread_tables(const Plan& plan);

}  // namespace millrace
