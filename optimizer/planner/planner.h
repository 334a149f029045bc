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
  Auto,    ///< stages recompute if they do not fit otherwise
  Always,  ///< every stage recomputes
};
constexpr auto names_of(Recompute) {
  return std::to_array<std::string_view>({"never", "auto", "always"});
}

/// Returns the bytes of a rank's memory that tensors cannot fill. LibTorch's allocator takes a GPU's memory
/// in pieces of 20 MiB, for tensors of 1 to 10 MiB, and of 2 MiB, for smaller ones: the last of each is not
/// full.
Bytes bytes_kept_free(const LayerGraph& graph);

/// Options of the planner for millrace's own profiles.
struct PlannerOptions {
  /// Microbatches of a step, counted over all CostOptions::arrays: a multiple of their number. 0: choose
  /// among 1, 2, 4, 8, ... up to 4 x ranks.
  int microbatches = 4;
  int stages = 0;                        ///< 0: choose
  std::optional<ScheduleKind> schedule;  ///< unset: the best flushing one (1F1B on ties)
  int chunks = 0;                        ///< stages of each rank; 0: choose what the schedules allow
  bool straight = false;                 ///< no replication
  Bytes memory_per_rank = 0;             ///< 0: the limits of the cluster
  Bytes kept_free = 0;                   ///< of each limit: what tensors cannot fill (bytes_kept_free)
  Recompute recompute = Recompute::Never;
  CostOptions costs;
  double effort = 1;  ///< factor on every limit of work
  /// In a graph with at most this many sets of layers that a cut can separate, all of them are searched. In
  /// wider graphs only the prefixes of some topological orders are.
  int most_states = 2000;
  /// Called now and then with the name of the work under way and the part of it that is done, from 0 to 1.
  /// May be empty.
  std::function<void(std::string_view what, double part)> progress;
};

/// A plan that was simulated, and the parts of its step's seconds.
struct PlanCandidate {
  Plan plan;
  StepBreakdown parts;
};

/// How the answer was found, and what it was compared with.
struct PlanSearch {
  int spaces = 0;          ///< linear orders searched; 1 for the complete space
  int states = 0;          ///< places to cut in the largest space
  bool every_cut = false;  ///< all antichain cuts of the graph were candidates
  bool every_replication = false;
  bool finished = false;  ///< no work limit was met: the answer is the best of its candidates
  int layouts = 0;        ///< replications x placements x schedules x microbatch counts
  int chunked = 0;     ///< layouts with several stages per rank: their balanced cuts, improved step by step
  int simulated = 0;   ///< candidates that were simulated
  double floor_s = 0;  ///< no plan over these layouts takes less for the answer's microbatches; 0: unknown
};

struct PlannerAnswer {
  Plan plan;
  StepBreakdown parts;
  PlanSearch search;
  /// The best plan of each other way (schedule, microbatches, ranks of each stage), best first, at most
  /// eight.
  std::vector<PlanCandidate> others;
  std::optional<PlanCandidate> ignoring_memory;  ///< a faster plan that does not fit the memory
};

/// Returns the plan with the least simulated step time over antichain cuts, replications, placements and
/// schedules. It passes validate(plan, graph) and predicts step time, per-stage times, bytes and peak memory.
/// If nothing fits, the Problem's hint names changes with which a plan was found.
/// Deterministic: work is limited by counts.
Result<Plan> plan_layers(const LayerGraph& graph, const ClusterSpec& cluster, const PlannerOptions& options);
/// Returns the plan with its runners-up. If nothing fits the memory, it does not look for hints.
Result<PlannerAnswer> plan_that_fits(const LayerGraph& graph, const ClusterSpec& cluster,
                                     const PlannerOptions& options);
enum class Reasons {
  RunnerUp,  ///< the parts of a step of the plan and of the best other one
  All,       ///< the parts of all others too, and the plan that memory forbids
};
/// Plans, and gives the reasons for the choice.
Result<PlannerAnswer> explain_plan(const LayerGraph& graph, const ClusterSpec& cluster,
                                   const PlannerOptions& options, Reasons reasons = Reasons::All);

}  // namespace millrace
