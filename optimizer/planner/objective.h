// Chooses the best of the plans that were found, for a whole job. LibTorch-free.
#pragma once

#include "optimizer/planner/planner.h"

namespace millrace {

/// Seconds of a step among many, where ranks go on to the next one without a barrier; the step itself where
/// that makes no difference (asynchronous schedules) or would take long to find out.
double step_in_a_run(const Plan& plan, CostModel& model);

/// Fills predicted_run_step_s of the answer and of its runners-up.
void predict_runs(PlannerAnswer& answer, CostModel& model);

/// The answer of a job of many steps: of the plan and its runners-up the one whose step in a run takes least
/// for a microbatch; the others stay behind it in that order. For predict_runs' answers.
void choose_for_run(PlannerAnswer& answer);

}  // namespace millrace
