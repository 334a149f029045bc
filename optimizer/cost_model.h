// What a cut costs on a cluster: per-stage times, transfers, all-reduce, memory, and the simulated step.
// LibTorch-free; docs/planning.md has the formulas.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/plan/cluster_spec.h"
#include "runtime/plan/layer_graph.h"
#include "runtime/plan/plan.h"
#include "runtime/schedule/schedule.h"

namespace millrace {

/// One stage as node indices of the graph, and the ranks that hold it.
struct CutStage {
  std::vector<int> nodes;
  std::vector<RankId> ranks;
};

/// What the model says of a cut under a schedule.
struct StepEstimate {
  double step_s = 0;  ///< seconds for `microbatches` microbatches; steady state for the asynchronous schedule
  std::vector<double> forward_s;  ///< per stage, one microbatch; the loss counts with the last forward
  std::vector<double> backward_s;
  std::vector<Bytes> parameter_bytes;
  std::vector<Bytes> peak_bytes;  ///< per stage, of its fullest rank
  std::vector<PlanCrossing> crossings;
};

/// How many microbatches and weight versions the ranks of each stage hold at most. Follows from the order of
/// actions alone, not from the costs.
struct StashCounts {
  std::vector<int> microbatches;
  std::vector<int> versions;
};

/// Seconds for `bytes` between two ranks: latency + bytes / bandwidth of the innermost level that joins them.
double transfer_seconds(const ClusterSpec& cluster, RankId a, RankId b, Bytes bytes);
/// Ring all-reduce over the slowest level among `ranks`: 2 (r-1) latency + 2 (r-1)/r bytes / bandwidth.
double all_reduce_seconds(const ClusterSpec& cluster, const std::vector<RankId>& ranks, Bytes bytes);
/// Weights x versions + gradients + one optimiser copy + saved activations x stashed microbatches.
Bytes stage_memory(Bytes parameters, Bytes saved, int versions, int stashed);

/// Keeps references: graph and cluster must outlive it. Not thread-safe (it caches the last schedule).
class CostModel {
 public:
  CostModel(const LayerGraph& graph, const ClusterSpec& cluster);

  /// The stages of a validated plan by node index.
  std::vector<CutStage> stages_of(const Plan& plan) const;
  PipelineShape shape_of(const std::vector<CutStage>& stages, int microbatches) const;
  ScheduleCosts costs_of(const std::vector<CutStage>& stages, const PipelineShape& shape) const;

  /// Problem if the schedule does not exist for this shape (for example more replicas than microbatches).
  Result<StepEstimate> estimate(ScheduleKind kind, int microbatches, const std::vector<CutStage>& stages);
  Result<StashCounts> stash(ScheduleKind kind, const PipelineShape& shape);

  long simulated_actions() const { return simulated_actions_; }  ///< work done so far

 private:
  struct Prepared {
    ScheduleKind kind = ScheduleKind::OneFOneB;
    PipelineShape shape;
    Schedule schedule;
  };
  Result<Simulation> run(ScheduleKind kind, const PipelineShape& shape, const ScheduleCosts& costs);
  std::vector<PlanCrossing> crossings_of(const std::vector<CutStage>& stages) const;

  const LayerGraph& graph_;
  const ClusterSpec& cluster_;
  std::unordered_map<std::string, int> node_index_;
  std::vector<Prepared> prepared_;  // the last few schedules
  long simulated_actions_ = 0;
};

}  // namespace millrace
