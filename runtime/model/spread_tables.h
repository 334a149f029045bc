// The tables of a model spread over ranks.
#pragma once

#include "runtime/model/layered_model.h"
#include "runtime/plan/spread_tables.h"

namespace millrace {

/// Makes the plan for a model. A table is a layer that reads fields alone, and whose only parameter is an
/// embedding that no layer shares. One more problem: parts of a model that are trained in turns.
Result<Plan> spread_tables_plan(const LayeredModel& model, int ranks, int microbatches);

}  // namespace millrace
