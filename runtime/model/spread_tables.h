// Spreads a model's tables over ranks.
#pragma once

#include "runtime/model/layered_model.h"
#include "runtime/plan/spread_tables.h"

namespace millrace {

/// Makes the plan for a model. A table is a layer that reads only fields, and whose only parameter is an
/// embedding that no other layer shares. Also returns an error for a model that is trained in turns.
Result<Plan> spread_tables_plan(const LayeredModel& model, int ranks, int microbatches);

}  // namespace millrace
