// Cuts a profile into a plan. LibTorch-free.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "optimizer/cost_model.h"
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
  bool as_original = false;  ///< with the faults of the original programme (docs/planning.md, 2.2)
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

/// Whether a stage may forget its activations and compute them again before the backward.
enum class Recompute {
  Never,
  Auto,    ///< on stages that do not fit otherwise
  Always,  ///< on every stage
};

/// Our planner for our own profiles.
struct PlannerOptions {
  int microbatches = 4;                  ///< per step; 0: choose among 1, 2, 4, 8, ... up to 4 x ranks
  int stages = 0;                        ///< 0: choose
  std::optional<ScheduleKind> schedule;  ///< unset: the best flushing one (1F1B on ties)
  int chunks = 0;                        ///< stages of each rank; 0: choose what the schedules allow
  bool straight = false;                 ///< no replication
  Bytes memory_per_rank = 0;             ///< 0: the cluster's
  Recompute recompute = Recompute::Never;
  CostOptions costs;
  /// Graphs with at most this many sets of layers that a cut can separate are searched over all of them,
  /// wider ones over prefixes of some topological orders.
  int most_states = 2000;
};

/// A plan that was simulated, and where its step goes.
struct PlanCandidate {
  Plan plan;
  StepBreakdown parts;
};

/// How the answer was found, and what it was compared with.
struct PlanSearch {
  int spaces = 0;          ///< linear orders searched; 1 for the complete space
  int states = 0;          ///< places to cut, of the largest space
  bool every_cut = false;  ///< all antichain cuts of the graph were candidates
  bool every_replication = false;
  bool finished = false;  ///< no work limit was met: the answer is the best of its candidates
  int layouts = 0;        ///< replications x placements x schedules x microbatch counts
  int chunked = 0;     ///< layouts with several stages per rank: their balanced cuts, improved step by step
  int simulated = 0;   ///< candidates
  double floor_s = 0;  ///< no plan over these layouts takes less for the answer's microbatches; 0: unknown
};

struct PlannerAnswer {
  Plan plan;
  StepBreakdown parts;
  PlanSearch search;
  /// The best plan of each other way (schedule, microbatches, ranks of each stage), best first, at most
  /// eight.
  std::vector<PlanCandidate> others;
  std::optional<PlanCandidate> ignoring_memory;  ///< is faster, and does not fit
};

/// Least simulated step time over antichain cuts, replications, placements, and schedules.
/// The plan passes validate(plan, graph) and predicts step time, per-stage times, bytes and peak memory.
/// If nothing fits, the Problem's hint names changes with which a plan was found.
/// Deterministic: work is limited by counts.
Result<Plan> plan_layers(const LayerGraph& graph, const ClusterSpec& cluster, const PlannerOptions& options);
enum class Reasons {
  RunnerUp,  ///< where the seconds of the plan and of the best other one go
  All,       ///< of all others too, and the plan that memory forbids
};
/// The same with its reasons.
Result<PlannerAnswer> explain_plan(const LayerGraph& graph, const ClusterSpec& cluster,
                                   const PlannerOptions& options, Reasons reasons = Reasons::All);

/// What the cost model says of any plan (also one written by hand): fills the predictions of a copy.
Plan predict(const Plan& plan, const LayerGraph& graph, const ClusterSpec& cluster,
             const CostOptions& options = {});

/// PipeDream's graph as a profile: milliseconds become seconds, the backward is halved into its two parts,
/// what a layer outputs is what it keeps; a source called `Input*` is no layer: its forward is the time that
/// loading a batch takes, `data_s`; `__getitem__` and the like are ordinary layers. Times of the update
/// and the loss are not in the file. Problem on a cycle or negative numbers.
Result<LayerGraph> layer_graph(const PipeDreamGraph& graph, const std::string& model);
PipeDreamGraph pipedream_graph_of(const LayerGraph& graph);

}  // namespace millrace
