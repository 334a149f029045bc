#include "optimizer/cost_model.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "optimizer/planner.h"

namespace millrace {
namespace {

constexpr std::size_t kKeptSchedules = 4;  // two lengths of the asynchronous run, for two shapes

const ClusterLevel& joining_level(const ClusterSpec& cluster, RankId a, RankId b) {
  MILLRACE_CHECK(!cluster.levels.empty());
  int block = 1;
  for (const ClusterLevel& level : cluster.levels) {
    block *= level.count;
    if (a.value / block == b.value / block) return level;
  }
  return cluster.levels.back();
}

double seconds_over(const ClusterLevel& level, double messages, double bytes) {
  return messages * level.latency_s + bytes / level.bandwidth;
}

double slowest_transfer(const ClusterSpec& cluster, const CutStage& from, const CutStage& to, Bytes bytes) {
  double worst = 0;
  for (RankId a : from.ranks) {
    for (RankId b : to.ranks) worst = std::max(worst, transfer_seconds(cluster, a, b, bytes));
  }
  return worst;
}

// Run lengths whose difference is the steady state: whole rounds of every stage's replicas, past the fill.
std::pair<int, int> asynchronous_run(const PipelineShape& shape) {
  int round = 1;
  for (const auto& ranks : shape.ranks_of_stage) round = std::lcm(round, static_cast<int>(ranks.size()));
  const int fill = (4 * shape.num_ranks() + round - 1) / round * round;
  return {fill, 2 * fill};
}

std::vector<int> most_per_stage(const PipelineShape& shape, const std::vector<int>& by_rank) {
  std::vector<int> most;
  for (const auto& ranks : shape.ranks_of_stage) {
    int m = 0;
    for (RankId rank : ranks) m = std::max(m, by_rank[rank.value]);
    most.push_back(m);
  }
  return most;
}

bool same_shape(const PipelineShape& a, const PipelineShape& b) {
  return a.microbatches == b.microbatches && a.ranks_of_stage == b.ranks_of_stage && a.links == b.links;
}

}  // namespace

double transfer_seconds(const ClusterSpec& cluster, RankId a, RankId b, Bytes bytes) {
  return seconds_over(joining_level(cluster, a, b), 1, static_cast<double>(bytes));
}

double all_reduce_seconds(const ClusterSpec& cluster, const std::vector<RankId>& ranks, Bytes bytes) {
  const auto r = static_cast<double>(ranks.size());
  double worst = 0;
  for (RankId rank : ranks) {
    if (rank == ranks.front()) continue;
    const ClusterLevel& level = joining_level(cluster, ranks.front(), rank);
    worst = std::max(worst, seconds_over(level, 2 * (r - 1), 2 * (r - 1) / r * static_cast<double>(bytes)));
  }
  return worst;
}

Bytes stage_memory(Bytes parameters, Bytes saved, int versions, int stashed) {
  return parameters * (versions + 2) + saved * stashed;
}

CostModel::CostModel(const LayerGraph& graph, const ClusterSpec& cluster) : graph_(graph), cluster_(cluster) {
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    node_index_.emplace(graph.nodes[i].name, static_cast<int>(i));
  }
}

std::vector<CutStage> CostModel::stages_of(const Plan& plan) const {
  std::vector<CutStage> stages;
  for (const PlanStage& stage : plan.stages) {
    CutStage& cut = stages.emplace_back();
    cut.ranks = stage.ranks;
    for (const std::string& layer : stage.layers) {
      const auto found = node_index_.find(layer);
      MILLRACE_CHECK(found != node_index_.end(),
                     "layer '" << layer << "' is not in the profile: validate first");
      cut.nodes.push_back(found->second);
    }
  }
  return stages;
}

std::vector<PlanCrossing> CostModel::crossings_of(const std::vector<CutStage>& stages) const {
  std::vector<int> stage_of(graph_.nodes.size(), -1);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (int node : stages[s].nodes) stage_of[node] = static_cast<int>(s);
  }
  // A tensor that several layers of one stage read is sent to that stage once.
  std::map<std::pair<int, int>, Bytes> sent;     // (producer, stage)
  std::map<std::pair<int, int>, Bytes> between;  // (from stage, to stage)
  for (const LayerEdge& edge : graph_.edges) {
    const int to = stage_of[edge.consumer];
    if (stage_of[edge.producer] == to) continue;
    Bytes& known = sent[{edge.producer, to}];
    known = std::max(known, edge.bytes);
  }
  for (const auto& [key, bytes] : sent) between[{stage_of[key.first], key.second}] += bytes;
  std::vector<PlanCrossing> crossings;
  for (const auto& [pair, bytes] : between) {
    crossings.push_back({StageId(pair.first), StageId(pair.second), bytes});
  }
  return crossings;
}

PipelineShape CostModel::shape_of(const std::vector<CutStage>& stages, int microbatches) const {
  PipelineShape shape;
  shape.microbatches = microbatches;
  for (const CutStage& stage : stages) shape.ranks_of_stage.push_back(stage.ranks);
  for (const PlanCrossing& crossing : crossings_of(stages))
    shape.links.push_back({crossing.from, crossing.to});
  return shape;
}

ScheduleCosts CostModel::costs_of(const std::vector<CutStage>& stages, const PipelineShape& shape) const {
  ScheduleCosts costs;
  for (const CutStage& stage : stages) {
    double forward = 0;
    double input = 0;
    double weight = 0;
    Bytes parameters = 0;
    for (int i : stage.nodes) {
      const LayerNode& node = graph_.nodes[i];
      forward += node.forward_s;
      input += node.backward_input_s;
      weight += node.backward_weight_s;
      parameters += node.parameter_bytes;
    }
    costs.forward.push_back(forward);
    costs.backward_input.push_back(input);
    costs.backward_weight.push_back(weight);
    costs.reduce.push_back(all_reduce_seconds(cluster_, stage.ranks, parameters));
    costs.update.push_back(graph_.update_s_per_byte * static_cast<double>(parameters));
  }
  costs.forward.back() += graph_.loss_s;
  const std::vector<PlanCrossing> crossings = crossings_of(stages);
  for (const StageLink& link : shape.all_links()) {
    const auto crossing = std::find_if(crossings.begin(), crossings.end(), [&](const PlanCrossing& c) {
      return c.from == link.from && c.to == link.to;
    });
    const Bytes bytes = crossing == crossings.end() ? 0 : crossing->bytes;
    costs.transfer.push_back(
        slowest_transfer(cluster_, stages[link.from.value], stages[link.to.value], bytes));
  }
  return costs;
}

Result<Simulation> CostModel::run(ScheduleKind kind, const PipelineShape& shape, const ScheduleCosts& costs) {
  auto found = std::find_if(prepared_.begin(), prepared_.end(),
                            [&](const Prepared& p) { return p.kind == kind && same_shape(p.shape, shape); });
  if (found == prepared_.end()) {
    Result<Schedule> schedule = make_schedule(kind, shape);
    if (!schedule) return schedule.problems();
    if (prepared_.size() == kKeptSchedules) prepared_.erase(prepared_.begin());
    prepared_.push_back({kind, shape, std::move(*schedule)});
    found = prepared_.end() - 1;
  }
  for (const auto& actions : found->schedule.ranks) simulated_actions_ += static_cast<long>(actions.size());
  return simulate(found->schedule, shape, costs);
}

Result<StashCounts> CostModel::stash(ScheduleKind kind, const PipelineShape& shape) {
  ScheduleCosts unit;
  const auto stages = static_cast<std::size_t>(shape.num_stages());
  unit.forward.assign(stages, 1);
  unit.backward_input.assign(stages, 1);
  unit.backward_weight.assign(stages, 1);
  PipelineShape counted = shape;
  if (kind == ScheduleKind::PipeDream) counted.microbatches = asynchronous_run(shape).first;
  const Result<Simulation> simulation = run(kind, counted, unit);
  if (!simulation) return simulation.problems();
  return StashCounts{most_per_stage(shape, simulation->peak_stash),
                     most_per_stage(shape, simulation->peak_versions)};
}

Result<StepEstimate> CostModel::estimate(ScheduleKind kind, int microbatches,
                                         const std::vector<CutStage>& stages) {
  PipelineShape shape = shape_of(stages, microbatches);
  const ScheduleCosts costs = costs_of(stages, shape);
  StepEstimate estimate;
  StashCounts stashed;
  const auto simulated = [&](int length) -> Result<double> {
    shape.microbatches = length;
    const Result<Simulation> simulation = run(kind, shape, costs);
    if (!simulation) return simulation.problems();
    stashed = {most_per_stage(shape, simulation->peak_stash),
               most_per_stage(shape, simulation->peak_versions)};
    return simulation->makespan;
  };
  if (kind == ScheduleKind::PipeDream) {
    const auto [shorter, longer] = asynchronous_run(shape);
    const Result<double> first = simulated(shorter);
    if (!first) return first.problems();
    const Result<double> second = simulated(longer);
    if (!second) return second.problems();
    estimate.step_s = (*second - *first) / (longer - shorter) * microbatches;
  } else {
    const Result<double> step = simulated(microbatches);
    if (!step) return step.problems();
    estimate.step_s = *step;
  }
  estimate.crossings = crossings_of(stages);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    Bytes parameters = 0;
    Bytes saved = 0;
    for (int i : stages[s].nodes) {
      parameters += graph_.nodes[i].parameter_bytes;
      saved += graph_.nodes[i].saved_bytes;
    }
    estimate.forward_s.push_back(costs.forward[s]);
    estimate.backward_s.push_back(costs.backward_input[s] + costs.backward_weight[s]);
    estimate.parameter_bytes.push_back(parameters);
    estimate.peak_bytes.push_back(
        stage_memory(parameters, saved, stashed.versions[s], stashed.microbatches[s]));
  }
  return estimate;
}

Plan predict(const Plan& plan, const LayerGraph& graph, const ClusterSpec& cluster) {
  CostModel model(graph, cluster);
  const Result<StepEstimate> estimate =
      model.estimate(plan.schedule, plan.microbatches, model.stages_of(plan));
  MILLRACE_CHECK(estimate.has_value(), to_string(estimate.problems()));
  Plan result = plan;
  for (std::size_t s = 0; s < result.stages.size(); ++s) {
    result.stages[s].forward_s = estimate->forward_s[s];
    result.stages[s].backward_s = estimate->backward_s[s];
    result.stages[s].parameter_bytes = estimate->parameter_bytes[s];
    result.stages[s].peak_bytes = estimate->peak_bytes[s];
  }
  result.crossings = estimate->crossings;
  result.predicted_step_s = estimate->step_s;
  result.graph_fingerprint = graph.fingerprint();
  result.cluster_fingerprint = cluster.fingerprint();
  return result;
}

}  // namespace millrace
