// Hybrid parallelism: the tables of a model (embeddings of what the data has) spread over ranks, all else
// replicated on each of them.
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/model/layered_model.h"
#include "runtime/plan/plan.h"

namespace millrace {

/// Makes a plan of ScheduleKind::SpreadTables for `ranks` ranks. Stage r holds the tables of rank r. The next
/// stage has the layers that need no table, and the last one all others; every rank has a replica of both.
/// Largest tables are placed first, each on the rank with the fewest bytes (of equal ones the first).
/// Problems: less than two ranks, fewer tables than ranks, parts of a model that are trained in turns.
/// A table is a layer that reads fields alone, and whose only parameter is an embedding that no layer shares.
Result<Plan> spread_tables_plan(const LayeredModel& model, int ranks, int microbatches);

/// Returns for example "tables: rank 0: emb_l.2, emb_l.5 (1.2 MB); rank 1: emb_l.0 (0.9 MB); ...".
std::string text_of_spread_tables(const Plan& plan);

}  // namespace millrace
