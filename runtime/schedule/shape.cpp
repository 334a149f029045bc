#include <algorithm>
#include <numeric>
#include <set>

#include "runtime/base/check.h"
#include "runtime/schedule/schedule.h"

namespace millrace {

bool is_send(Op op) {
  return op == Op::SendActivation || op == Op::SendGradient;
}

bool is_receive(Op op) {
  return op == Op::RecvActivation || op == Op::RecvGradient;
}

bool is_transfer(Op op) {
  return is_send(op) || is_receive(op);
}

bool is_compute(Op op) {
  return op == Op::Forward || op == Op::Backward || op == Op::BackwardInput || op == Op::BackwardWeight;
}

SpanKind span_kind(Op op) {
  switch (op) {
    case Op::Forward:
      return SpanKind::Forward;
    case Op::Backward:
      return SpanKind::Backward;
    case Op::BackwardInput:
      return SpanKind::BackwardInput;
    case Op::BackwardWeight:
      return SpanKind::BackwardWeight;
    case Op::SendActivation:
    case Op::SendGradient:
      return SpanKind::Send;
    case Op::RecvActivation:
    case Op::RecvGradient:
      return SpanKind::Wait;
    case Op::Reduce:
      return SpanKind::Reduce;
    case Op::Update:
      return SpanKind::Update;
  }
  return SpanKind::Step;
}

int PipelineShape::num_ranks() const {
  std::set<RankId> distinct;
  for (const auto& ranks : ranks_of_stage) distinct.insert(ranks.begin(), ranks.end());
  return static_cast<int>(distinct.size());
}
int PipelineShape::replicas(StageId stage) const {
  return static_cast<int>(ranks_of_stage[stage.value].size());
}

int PipelineShape::replica_cycle() const {
  int result = 1;
  for (const auto& ranks : ranks_of_stage) result = std::lcm(result, static_cast<int>(ranks.size()));
  return result;
}

int period_of(const PipelineShape& shape) {
  return std::lcm(std::max(1, shape.update_every), shape.replica_cycle());
}

int filling_of(const PipelineShape& shape) {
  const int period = period_of(shape);
  return (4 * shape.num_ranks() + period - 1) / period * period;
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

bool PipelineShape::is_local(const StageLink& link, MicrobatchId microbatch) const {
  return rank_of(link.from, microbatch) == rank_of(link.to, microbatch);
}

std::vector<std::vector<StageId>> PipelineShape::stages_of_ranks() const {
  std::vector<std::vector<StageId>> stages(num_ranks());
  for (int s = 0; s < num_stages(); ++s) {
    for (RankId rank : ranks_of_stage[s])
      if (rank.value >= 0 && rank.value < static_cast<int>(stages.size())) stages[rank.value].emplace_back(s);
  }
  return stages;
}

bool PipelineShape::has_chunks() const {
  std::size_t places = 0;
  for (const auto& ranks : ranks_of_stage) places += ranks.size();
  return static_cast<int>(places) != num_ranks();
}

namespace {
/// The replicas of place `place`: consecutive ranks.
std::vector<RankId> place_ranks(int place, int replicas) {
  std::vector<RankId> ranks;
  for (int i = 0; i < replicas; ++i) ranks.emplace_back(place * replicas + i);
  return ranks;
}
}  // namespace

PipelineShape chain_shape(int stages, int microbatches, int replicas) {
  return interleaved_shape(stages, 1, microbatches, replicas);
}

PipelineShape interleaved_shape(int p, int v, int microbatches, int replicas) {
  PipelineShape shape{.microbatches = microbatches};
  for (int s = 0; s < p * v; ++s) shape.ranks_of_stage.push_back(place_ranks(s % p, replicas));
  return shape;
}

PipelineShape v_shape(int p, int microbatches, int replicas) {
  PipelineShape shape{.microbatches = microbatches};
  for (int s = 0; s < 2 * p; ++s)
    shape.ranks_of_stage.push_back(place_ranks(std::min(s, 2 * p - 1 - s), replicas));
  return shape;
}

PipelineShape shape_of(const Plan& plan, int microbatches) {
  PipelineShape shape{.microbatches = microbatches};
  if (microbatches == 0) {
    shape.microbatches = plan.microbatches * plan.arrays;
    shape.arrays = plan.arrays;
  }
  for (const PlanStage& stage : plan.stages) shape.ranks_of_stage.push_back(stage.ranks);
  for (const PlanCrossing& crossing : plan.crossings) shape.links.push_back({crossing.from, crossing.to});
  if (updates_after_several(plan.schedule)) shape.update_every = plan.microbatches;
  return shape;
}

}  // namespace millrace
