#include <algorithm>
#include <numeric>
#include <set>

#include "runtime/base/check.h"
#include "runtime/schedule/schedule.h"

namespace millrace {

bool is_transfer(Op op) {
  return op == Op::SendActivation || op == Op::RecvActivation || op == Op::SendGradient ||
         op == Op::RecvGradient;
}

bool is_compute(Op op) {
  return op == Op::Forward || op == Op::Backward || op == Op::BackwardInput || op == Op::BackwardWeight;
}

int PipelineShape::num_ranks() const {
  std::size_t count = 0;
  for (const auto& ranks : ranks_of_stage) count += ranks.size();
  return static_cast<int>(count);
}

int PipelineShape::replicas(StageId stage) const {
  return static_cast<int>(ranks_of_stage[stage.value].size());
}

RankId PipelineShape::rank_of(StageId stage, MicrobatchId microbatch) const {
  const auto& ranks = ranks_of_stage[stage.value];
  return ranks[static_cast<std::size_t>(microbatch.value) % ranks.size()];
}

std::vector<StageLink> PipelineShape::all_links() const {
  if (!links.empty()) return links;
  std::vector<StageLink> chain;
  for (int s = 0; s + 1 < num_stages(); ++s) chain.push_back({StageId(s), StageId(s + 1)});
  return chain;
}

PipelineShape shape_of(const Plan& plan, int microbatches) {
  PipelineShape shape{.microbatches = microbatches > 0 ? microbatches : plan.microbatches};
  for (const PlanStage& stage : plan.stages) shape.ranks_of_stage.push_back(stage.ranks);
  for (const PlanCrossing& crossing : plan.crossings) shape.links.push_back({crossing.from, crossing.to});
  return shape;
}

}  // namespace millrace
