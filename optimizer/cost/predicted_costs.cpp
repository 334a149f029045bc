#include "optimizer/cost/predicted_costs.h"

#include <algorithm>

#include "optimizer/cost/cost_model.h"

namespace millrace {
namespace {

const PlanStage& stage_at(const Plan& plan, StageId stage) {
  return plan.stages[stage.value];
}

Bytes bytes_of(const Plan& plan, const StageLink& link) {
  for (const PlanCrossing& crossing : plan.crossings) {
    if (crossing.from == link.from && crossing.to == link.to) return crossing.bytes;
  }
  return 0;
}

}  // namespace

bool has_predicted_times(const Plan& plan) {
  return std::ranges::any_of(plan.stages,
                             [](const PlanStage& s) { return s.forward_s > 0 || s.backward_s > 0; });
}

ScheduleCosts predicted_costs(const Plan& plan, const PipelineShape& shape, const ClusterSpec& cluster) {
  ScheduleCosts costs;
  const std::vector<AllReduceCost> reduces =
      all_reduce_costs(cluster, ports_of(cluster), shape.ranks_of_stage);
  for (const PlanStage& stage : plan.stages) {
    costs.forward.push_back(stage.forward_s);
    costs.backward_input.push_back(stage.backward_s / 2);
    costs.backward_weight.push_back(stage.backward_s / 2);
    const AllReduceCost& reduce = reduces[costs.reduce.size()];
    costs.reduce.push_back(reduce.seconds(stage.parameter_bytes));
    costs.reduce_ports.push_back({.ports = reduce.port_seconds(stage.parameter_bytes)});
  }
  for (const StageLink& link : shape.all_links()) {
    const Bytes bytes = bytes_of(plan, link);
    double slowest = 0;
    for (RankId a : stage_at(plan, link.from).ranks) {
      for (RankId b : stage_at(plan, link.to).ranks)
        slowest = std::max(slowest, transfer_seconds(cluster, a, b, bytes));
    }
    costs.transfer.push_back(slowest);
    costs.transfer_bytes.push_back(static_cast<double>(bytes));
  }
  costs.transfer_back_bytes = costs.transfer_bytes;
  return costs;
}

}  // namespace millrace
