// Cuts our own profiles into plans. LibTorch-free.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/cost/cost_model.h"
#include "runtime/base/choices.h"
#include "runtime/base/result.h"
#include "runtime/plan/cluster_spec.h"
#include "runtime/plan/layer_graph.h"
#include "runtime/plan/plan.h"

namespace millrace {

/// Whether a stage may forget its activations and compute them again before the backward.
enum class Recompute {
  Never,
  Auto,    ///< on stages that do not fit otherwise
  Always,  ///< on every stage
};
constexpr auto names_of(Recompute) {
  return std::to_array<std::string_view>({"never", "auto", "always"});
}

/// Our planner for our own profiles.
struct PlannerOptions {
  /// Per step, of all CostOptions::arrays (a multiple of them); 0: choose among 1, 2, 4, 8, ... up to 4 x
  /// ranks.
  int microbatches = 4;
  int stages = 0;                        ///< 0: choose
  std::optional<ScheduleKind> schedule;  ///< unset: the best flushing one (1F1B on ties)
  int chunks = 0;                        ///< stages of each rank; 0: choose what the schedules allow
  bool straight = false;                 ///< no replication
  Bytes memory_per_rank = 0;             ///< 0: the cluster's
  Recompute recompute = Recompute::Never;
  CostOptions costs;
  double effort = 1;  ///< factor on every limit of work
  /// Graphs with at most this many sets of layers that a cut can separate are searched over all of them,
  /// wider ones over prefixes of some topological orders.
  int most_states = 2000;
  /// Told now and then what is done and which part of it, from 0 to 1. May be empty.
  std::function<void(std::string_view what, double part)> progress;
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
/// The answer with its others. Where nothing fits the memory no hint is looked for.
Result<PlannerAnswer> plan_that_fits(const LayerGraph& graph, const ClusterSpec& cluster,
                                     const PlannerOptions& options);
enum class Reasons {
  RunnerUp,  ///< where the seconds of the plan and of the best other one go
  All,       ///< of all others too, and the plan that memory forbids
};
/// Plans, and gives the reasons for the choice.
Result<PlannerAnswer> explain_plan(const LayerGraph& graph, const ClusterSpec& cluster,
                                   const PlannerOptions& options, Reasons reasons = Reasons::All);

}  // namespace millrace
