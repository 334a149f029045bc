// Chooses the best of the plans that were found, for a whole job. LibTorch-free.
#pragma once

#include "optimizer/planner/planner.h"

namespace millrace {

/// Returns the seconds of a step in a run of many, in which ranks go on to the next step without a barrier.
/// Returns the seconds of a single step for asynchronous schedules, where both are equal, and for plans whose
/// simulation would take long.
double step_in_a_run(const Plan& plan, CostModel& model);

/// Fills predicted_run_step_s of the answer and of its runners-up.
void predict_runs(PlannerAnswer& answer, CostModel& model);

/// Chooses for a run of many steps. The plan becomes the one of the plan and its runners-up whose step in a
/// run takes least for a microbatch; the others follow in that order. predict_runs() must have filled the
/// answer.
void choose_for_run(PlannerAnswer& answer);

}  // namespace millrace
