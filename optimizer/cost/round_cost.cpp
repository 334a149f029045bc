#include "optimizer/cost/round_cost.h"

#include <algorithm>

#include "runtime/base/mean.h"
#include "runtime/plan/array_profiles.h"
#include "runtime/schedule/message.h"
#include "runtime/schedule/simulate.h"

namespace millrace {
namespace {

/// Returns the seconds of action `a` with `costs`; -1 if it neither computes nor carries a message.
double seconds_of(const Action& a, const ScheduleCosts& costs, const MessageIndex& messages) {
  const auto s = static_cast<std::size_t>(a.stage.value);
  switch (a.op) {
    case Op::Forward:
      return costs.forward[s];
    case Op::Backward:
      return costs.backward_input[s] + costs.backward_weight[s];
    case Op::BackwardInput:
      return costs.backward_input[s];
    case Op::BackwardWeight:
      return costs.backward_weight[s];
    case Op::Reduce:
      return costs.reduce[s];
    case Op::Update:
      return costs.update[s];
    default:
      break;
  }
  const std::int64_t message = messages.of(a);
  return message < 0 ? -1 : costs.transfers(a.op)[messages.link_of(static_cast<std::size_t>(message))];
}

}  // namespace

Result<CostOptions> costs_of_array(const CostOptions& costs, int jobs) {
  CostOptions made = costs;
  Problems problems;
  for (auto& [kind, profile] : made.profiles) {
    Result<LayerGraph> own = profile_of_array(profile, jobs);
    if (!own) {
      for (Problem problem : own.problems()) {
        problem.where = "kind " + kind;
        problems.push_back(std::move(problem));
      }
      continue;
    }
    profile = *std::move(own);
  }
  if (!problems.empty()) return problems;
  return made;
}

Result<SizedModel*> RoundCosts::of(int jobs, int arrays) {
  if (const auto known = models_.find({jobs, arrays}); known != models_.end()) return &known->second;
  Result<LayerGraph> graph = profile_of_array(profile_, jobs);
  if (!graph) return graph.problems();
  Result<CostOptions> costs = costs_of_array(costs_, jobs);
  if (!costs) return costs.problems();
  costs->arrays = arrays;
  SizedModel& made = models_[{jobs, arrays}];
  made.graph = *std::move(graph);
  made.model = std::make_unique<CostModel>(made.graph, cluster_, *std::move(costs));
  return &made;
}

Result<double> RoundCosts::compute_s(int jobs, int microbatches) {
  const Result<SizedModel*> sized = of(jobs, 1);
  if (!sized) return sized.problems();
  const CostModel& model = *(*sized)->model;
  double rate = 0;
  for (int r = 0; r < cluster_.num_ranks(); ++r) {
    const int sheet = model.sheet_of(RankId(r));
    double all = model.loss_s(sheet);
    for (std::size_t node = 0; node < model.graph().nodes.size(); ++node)
      all += model.forward_s(sheet, static_cast<int>(node)) + model.backward_s(sheet, static_cast<int>(node));
    rate += all > 0 ? 1 / all : 0;
  }
  return rate > 0 ? microbatches / rate : 0;
}

Result<RoundCost> RoundCosts::cost(const Plan& plan, const PlanRound& round) {
  const std::vector<int> sizes = round.sizes();
  return sizes.front() == sizes.back() ? of_equal_arrays(plan, sizes.front(), round.arrays)
                                       : of_unequal_arrays(plan, sizes);
}

Result<RoundCost> RoundCosts::of_equal_arrays(const Plan& plan, int jobs, int arrays) {
  const Result<SizedModel*> sized = of(jobs, arrays);
  if (!sized) return sized.problems();
  CostModel& model = *(*sized)->model;
  const std::vector<CutStage> stages = model.stages_of(plan);
  const int microbatches = plan.microbatches * arrays;
  const Result<StepEstimate> estimate = model.estimate(plan.schedule, microbatches, stages);
  if (!estimate) return estimate.problems();
  const PipelineShape shape = model.shape_of(stages, microbatches);
  const double longer =
      model.length_share(plan.schedule, stages, shape, model.costs_of(stages, shape, plan.schedule));
  return RoundCost{.step_s = estimate->step_s * longer, .idle = mean(estimate->bubble)};
}

/// Returns the cost of a round of arrays of different sizes. The schedule flushes: an asynchronous one has a
/// single array.
Result<RoundCost> RoundCosts::of_unequal_arrays(const Plan& plan, const std::vector<int>& sizes) {
  std::map<int, std::vector<ScheduleCosts>> costs;  // key: size of the array; one entry for each turn
  PipelineShape shape;
  SimulationOptions options;
  for (const int size : sizes) {
    if (costs.contains(size)) continue;
    const Result<SizedModel*> sized = of(size, 1);
    if (!sized) return sized.problems();
    CostModel& model = *(*sized)->model;
    const std::vector<CutStage> stages = model.stages_of(plan);
    shape = model.shape_of(stages, plan.microbatches);
    std::vector<ScheduleCosts>& own = costs[size];
    own = model.turn_costs(stages, shape, plan.schedule);
    if (own.empty()) own.push_back(model.costs_of(stages, shape, plan.schedule));
    options = model.conditions();
  }
  const auto arrays = static_cast<int>(sizes.size());
  shape.arrays = arrays;
  shape.microbatches = plan.microbatches * arrays;
  Result<Schedule> schedule = schedule_of(plan, shape, Transport::Buffered);
  if (!schedule) return schedule.problems();
  const std::vector<ScheduleCosts>& first = costs.at(sizes.front());
  if (first.size() > 1) *schedule = in_turns(*schedule, shape, options, first);
  const MessageIndex messages(shape);
  for (const auto& actions : schedule->ranks) {
    std::vector<double>& own = options.own_seconds.emplace_back();
    for (const Action& a : actions) {
      const int at = shape.array_of(a.microbatch);
      own.push_back(seconds_of(a, costs.at(sizes[at % arrays])[at / arrays], messages));
    }
  }
  const Simulation simulation = simulate(*schedule, shape, first.front(), options);
  return RoundCost{.step_s = simulation.makespan, .idle = mean(simulation.bubble_fraction)};
}

}  // namespace millrace
