// Cuts a profile into a plan. LibTorch-free.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/cluster_spec.h"
#include "runtime/plan/layer_graph.h"
#include "runtime/plan/pipedream_formats.h"
#include "runtime/plan/plan.h"

namespace millrace {

/// PipeDream's planner, exact (docs: pipedream mode). Levels innermost first.
struct PipeDreamOptions {
  std::vector<int> machines;
  std::vector<double> bandwidths;  ///< bytes/s, one per level
  bool straight = false;
  bool use_fewer_machines = false;
  std::optional<double> memory_bytes;            ///< set: the memory test is on
  std::optional<double> activation_compression;  ///< unset: transfers are free
};

struct PipeDreamStage {
  double compute_time_s = 0;       ///< not divided by the replication
  int replication = 1;             ///< product over levels
  std::vector<std::string> nodes;  ///< ids, in file order
};

struct PipeDreamAnswer {
  double single_machine_time_s = 0;
  double data_parallel_time_s = 0;
  double pipeline_time_s = 0;
  std::vector<PipeDreamStage> stages;
};

/// Deterministic: ties by (time, fewer stages, earlier split). Problem on level lists that do not match,
/// no plan within memory, ...
Result<PipeDreamAnswer> plan_pipedream(const PipeDreamGraph& graph, const PipeDreamOptions& options);

/// What the cost model says of given stages (`nodes` and `replication` are read; times are not), gathered
/// into the levels in the best way. Problem if they are not cuts of the graph or do not fit machines or
/// memory.
Result<double> evaluate_pipedream(const PipeDreamGraph& graph, const PipeDreamOptions& options,
                                  const std::vector<PipeDreamStage>& stages);

/// Our planner for our own profiles.
struct PlannerOptions {
  int microbatches = 4;                  ///< per step; 0: choose among 1, 2, 4, 8, ... up to 4 x ranks
  int stages = 0;                        ///< 0: choose
  std::optional<ScheduleKind> schedule;  ///< unset: the best flushing one (1F1B on ties)
  bool straight = false;                 ///< no replication
  Bytes memory_per_rank = 0;             ///< 0: the cluster's
};
/// Least simulated step time over contiguous cuts of the topological order, with replication.
/// The plan passes validate(plan, graph) and predicts step time, per-stage times, bytes and peak memory.
Result<Plan> plan_layers(const LayerGraph& graph, const ClusterSpec& cluster, const PlannerOptions& options);

/// What the cost model says of any plan (also one written by hand): fills the predictions of a copy.
Plan predict(const Plan& plan, const LayerGraph& graph, const ClusterSpec& cluster);

}  // namespace millrace
