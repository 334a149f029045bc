#include "optimizer/planner/objective.h"

#include <algorithm>

#include "runtime/schedule/simulate.h"

namespace millrace {
namespace {

constexpr long kMostPlacesOfARun = 20'000;  // stages x microbatches that are simulated at most

double per_microbatch_of_run(const Plan& plan) {
  return (plan.predicted_run_step_s > 0 ? plan.predicted_run_step_s : plan.predicted_step_s) /
         plan.microbatches;
}

}  // namespace

double step_in_a_run(const Plan& plan, CostModel& model) {
  if (is_asynchronous(plan.schedule) ||
      static_cast<long>(plan.num_stages()) * plan.microbatches > kMostPlacesOfARun)
    return plan.predicted_step_s;
  const PipelineShape shape = shape_of(plan);
  const Result<Schedule> schedule = schedule_of(plan, shape, Transport::Buffered);
  if (!schedule) return plan.predicted_step_s;
  const std::vector<CutStage> stages = model.stages_of(plan);
  const ScheduleCosts costs = model.costs_of(stages, shape, plan.schedule);
  std::vector<ScheduleCosts> turns = model.turn_costs(stages, shape, plan.schedule);
  if (!turns.empty()) {
    PipelineShape whole = shape;
    SimulationOptions options = model.conditions();
    const Schedule step = in_turns(*schedule, whole, options, std::move(turns));
    return steady_step(step, whole, costs, options);
  }
  return steady_step(*schedule, shape, costs, model.conditions()) *
         model.length_share(plan.schedule, stages, shape, costs);
}

void predict_runs(PlannerAnswer& answer, CostModel& model) {
  answer.plan.predicted_run_step_s = step_in_a_run(answer.plan, model);
  for (PlanCandidate& other : answer.others)
    other.plan.predicted_run_step_s = step_in_a_run(other.plan, model);
}

void choose_for_run(PlannerAnswer& answer) {
  std::vector<PlanCandidate> all{{answer.plan, answer.parts}};
  all.insert(all.end(), answer.others.begin(), answer.others.end());
  std::stable_sort(all.begin() + 1, all.end(), [](const PlanCandidate& a, const PlanCandidate& b) {
    return per_microbatch_of_run(a.plan) < per_microbatch_of_run(b.plan);
  });
  // With equal times the planner's own choice stays: it is the simpler one.
  if (all.size() > 1 &&
      per_microbatch_of_run(all[1].plan) < per_microbatch_of_run(all[0].plan) * (1 - 1e-10)) {
    const auto place = std::find_if(all.begin() + 1, all.end(), [&](const PlanCandidate& other) {
      return per_microbatch_of_run(other.plan) > per_microbatch_of_run(all[0].plan);
    });
    std::rotate(all.begin(), all.begin() + 1, place);
  }
  answer.plan = all.front().plan;
  answer.parts = all.front().parts;
  answer.others.assign(all.begin() + 1, all.end());
}

}  // namespace millrace
