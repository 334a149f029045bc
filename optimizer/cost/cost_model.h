// The costs of a cut on a cluster: per-stage times, transfers, all-reduce, memory, and the simulated step.
// LibTorch-free; docs/planning.md has the formulas.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/base/all_reduce_route.h"
#include "runtime/base/choices.h"
#include "runtime/plan/cluster_spec.h"
#include "runtime/plan/layer_graph.h"
#include "runtime/plan/plan.h"
#include "runtime/schedule/schedule.h"
#include "runtime/schedule/simulate.h"

namespace millrace {

/// How the all-reduce of a replicated stage is charged.
enum class ReduceModel {
  Overlapped,  ///< as the runtime does it: buckets leave while the last pass over weight gradients goes on;
               ///< what is left then counts
  Serial,      ///< one all-reduce of all gradients after the last backward
};
constexpr auto names_of(ReduceModel) {
  return std::to_array<std::string_view>({"overlapped", "serial"});
}

struct CostOptions {
  ReduceModel reduce = ReduceModel::Overlapped;
  Bytes bucket_bytes = 4 * kMiB;  ///< ExecutorOptions::bucket_bytes of the runtime
  int loaded_ahead = 8;           ///< LoaderOptions::prefetch of the data: batches that wait for their turn
  int rule_copies = 1;            ///< parameter-sized tensors that the update rule keeps: RuleMemory
  bool share_rule_state = false;  ///< ZeRO-1: replicas share them. The time is as without
  bool clips_norm = false;  ///< train --clip-norm, of the whole model or in asynchronous ones of a stage
  /// Plan::arrays: so many, each with weights of its own, follow each other in a step. Microbatches are those
  /// of all, layers cost what the profile of one array says.
  int arrays = 1;
  /// Profiles measured on a kind of device, by the kind's name: the same layers as the planner's profile.
  std::map<std::string, LayerGraph> profiles;

  /// Among how many the ranks of a stage share the rule's copies.
  int shards_of(const std::vector<RankId>& ranks) const {
    return share_rule_state ? static_cast<int>(ranks.size()) : 1;
  }
};

/// One stage as node indices of the graph in execution order, and the ranks that hold it.
struct CutStage {
  std::vector<int> nodes;
  std::vector<RankId> ranks;
  bool recompute = false;
};

/// The predicted step of a cut under a schedule. Vectors are by stage unless they say otherwise.
struct StepEstimate {
  double step_s = 0;  ///< seconds for `microbatches` microbatches; steady state for the asynchronous schedule
  std::vector<double> forward_s;  ///< one microbatch; the loss counts with the last forward
  std::vector<double> backward_s;
  std::vector<double> reduce_s;  ///< exposed part
  std::vector<double> update_s;  ///< with the norm of the gradient
  std::vector<double> bubble;    ///< share of the makespan in which its busiest rank does not compute
  std::vector<Bytes> parameter_bytes;
  std::vector<Bytes> peak_bytes;  ///< of its fullest rank
  std::vector<PlanCrossing> crossings;
  std::vector<double>
      transfer_s;  ///< by crossing: one message over the slowest pair of ranks that exchange it
};

/// The parts of a step's seconds. They add up to `step_s`.
struct StepBreakdown {
  double compute_s = 0;    ///< of all microbatches, divided by the ranks' speeds: no plan has less
  double imbalance_s = 0;  ///< the busiest rank's compute beyond that
  double bubble_s =
      0;  ///< fill and drain: the step without transfers, reduce and update beyond the busiest rank
  double update_s = 0;    ///< what the updates add
  double reduce_s = 0;    ///< what the all-reduces add
  double transfer_s = 0;  ///< what the transfers add
  double lengths_s = 0;   ///< what microbatches of different lengths add to as many alike
  double step_s = 0;
};

/// How many microbatches and weight versions the ranks of each stage hold. Follows from the order of actions
/// alone, not from the costs.
struct StashCounts {
  std::vector<int> microbatches;
  std::vector<int> versions;
  std::vector<int> open_backwards;  ///< from an input gradient to its weight gradient
};

/// Seconds for `bytes` between two ranks: latency + bytes / bandwidth of the link that joins them, and the
/// copies between device and host where the cluster names them.
double transfer_seconds(const ClusterSpec& cluster, RankId a, RankId b, Bytes bytes);

/// Returns the port to the other hosts that each rank uses. Ports are the hosts of the cluster, or of
/// symmetric levels the innermost components. Empty: every pair of ranks has a wire of its own (one host,
/// one level).
std::vector<int> ports_of(const ClusterSpec& cluster);

/// The runtime's all-reduce over `ranks` in their order (runtime/base/all_reduce_route.h) on the slowest of
/// the links that it takes: direct latency + (r-1) bytes / bandwidth, in chunks 2 latency + 2 (r-1)/r bytes /
/// bandwidth; host after host the chunks inside the hosts, and between h of them 2 (h-1) latency + 2
/// (p+h-2)/p bytes / bandwidth for p pieces ((p+1)/p between two). `sharing`: so many all-reduces at a time
/// share a host's port.
class AllReduceCost {
 public:
  AllReduceCost() = default;
  AllReduceCost(const ClusterSpec& cluster, const std::vector<int>& ports, const std::vector<RankId>& ranks,
                int sharing = 1);
  double seconds(Bytes bytes) const;  ///< 0 for a single rank or no bytes

 private:
  struct Slowest {
    double latency_s = 0;
    double s_per_byte = 0;
  };
  double members_ = 0;
  AllReduceRoute route_;      // of many bytes
  Slowest inside_, between_;  // of the links between members that follow each other, on a host and over hosts
  double pairs_over_port_ = 0;  // of members, at the busiest port
  double sharing_ = 1;
};
double all_reduce_seconds(const ClusterSpec& cluster, const std::vector<RankId>& ranks, Bytes bytes);

/// Returns the cost of the all-reduce of each stage, while those of the other stages use the same ports.
std::vector<AllReduceCost> all_reduce_costs(const ClusterSpec& cluster, const std::vector<int>& ports,
                                            const std::vector<std::vector<RankId>>& ranks_of_stage);

/// The memory of a rank of a stage. `incoming` and `outgoing`: bytes of the tensors that cross its borders
/// for one microbatch. (parameters + lowered) x versions + parameters x (gradients + rule copies) + the stash
/// + 2 (incoming + outgoing) for messages in flight + what was loaded ahead. The stash of a microbatch: saved
/// + incoming; with recompute incoming only, and `saved` for each backward that is under way (one, unless the
/// schedule splits backwards).
struct StageMemory {
  Bytes parameters = 0;
  Bytes lowered = 0;  ///< copies of them (LayerNode::lowered_bytes), with each version
  Bytes loaded = 0;   ///< batches that were loaded ahead, of an array
  Bytes saved = 0;
  Bytes incoming = 0;
  Bytes outgoing = 0;
  Bytes workspace = 0;  ///< of a backward, beyond what it has freed of the stash by then
  int versions = 1;
  int stashed = 1;
  int rule_copies = 1;
  int rule_shards = 1;  ///< ranks that share the rule's copies
  int open_backwards = 1;
  bool recompute = false;
  int arrays = 1;  ///< with parameters, gradients and rule state of their own
  /// The bytes that all-reduces of an array receive. They are under way beside the last microbatch only.
  Bytes reduced = 0;
  Bytes total() const;
  Bytes stash() const;  ///< of one microbatch
  Bytes once() const;   ///< neither by version nor by microbatch
};

/// Returns the bytes that a rank receives while gradients of `parameters` bytes are summed over `replicas`.
/// Two replicas: all bytes, since their buckets are under way at the same time. More replicas, whose
/// buckets go one after the other: the chunks of one bucket.
Bytes reduced_bytes(Bytes parameters, std::size_t replicas, Bytes bucket_bytes);

/// Keeps references: graph and cluster must outlive it. Not thread-safe (it caches the last schedules).
class CostModel {
 public:
  CostModel(const LayerGraph& graph, const ClusterSpec& cluster, CostOptions options = {});

  /// The stages of a validated plan by node index.
  std::vector<CutStage> stages_of(const Plan& plan) const;
  /// Execution order, as the runtime has it whatever order a plan lists them in (make_layout sorts).
  void sort_by_execution(std::vector<int>& nodes) const;
  PipelineShape shape_of(const std::vector<CutStage>& stages, int microbatches) const;
  /// `kind` says which pass of the last backward the all-reduces overlap, and whose updates copy the weights.
  /// Returns the costs of a cut. For a model that is trained in turns they are sums over the turns.
  ScheduleCosts costs_of(const std::vector<CutStage>& stages, const PipelineShape& shape,
                         ScheduleKind kind) const;
  /// Returns the costs of each turn, for in_turns (simulate.h); empty if the model has no turns.
  std::vector<ScheduleCosts> turn_costs(const std::vector<CutStage>& stages, const PipelineShape& shape,
                                        ScheduleKind kind);
  /// How much longer a step takes with the profile's microbatches, each as long as it is in each stage and in
  /// their order, than with as many that all take the mean: in a pipeline a long one makes others wait. 1
  /// where all are alike, and of turns, which have the means. `costs`: those of the stages.
  double length_share(ScheduleKind kind, const std::vector<CutStage>& stages, PipelineShape shape,
                      const ScheduleCosts& costs);
  /// The hosts whose ports messages share.
  const SimulationOptions& conditions() const { return conditions_; }

  /// The predictions of a copy; see predict().
  Plan predict(const Plan& plan);

  /// Problem if the schedule does not exist for this shape (for example more replicas than microbatches).
  Result<StepEstimate> estimate(ScheduleKind kind, int microbatches, const std::vector<CutStage>& stages);
  /// Returns the memory of each stage, for one version and one stashed microbatch.
  std::vector<StageMemory> memory_of(const std::vector<CutStage>& stages) const;
  /// Returns a time below which no order of the actions can end.
  double busiest_rank_s(ScheduleKind kind, int microbatches, const std::vector<CutStage>& stages) const;
  Result<StepBreakdown> breakdown(ScheduleKind kind, int microbatches, const std::vector<CutStage>& stages);
  /// Whether train --sync-batch-norm, if the profile is of that, takes such a plan (check_replicas_meet).
  bool replicas_can_meet(ScheduleKind kind, int microbatches, const std::vector<CutStage>& stages);
  /// Exact for one stage per rank in a fixed order; at least, for the others.
  Result<StashCounts> stash(ScheduleKind kind, const PipelineShape& shape);
  /// Bytes of each stage's fullest rank, as estimate() has them. Nothing is simulated.
  Result<std::vector<Bytes>> peaks(ScheduleKind kind, int microbatches, const std::vector<CutStage>& stages);

  /// Costs differ by kind of device: sheet 0 is the profile as it is. All ranks of a sheet are equal.
  int num_sheets() const { return static_cast<int>(sheets_.size()); }
  int sheet_of(RankId rank) const { return sheet_of_rank_[rank.value]; }
  double forward_s(int sheet, int node) const { return sheets_[sheet].forward[node]; }
  double backward_s(int sheet, int node) const {
    return sheets_[sheet].backward_input[node] + sheets_[sheet].backward_weight[node];
  }
  double loss_s(int sheet) const { return sheets_[sheet].loss_s; }
  double update_s_per_byte(int sheet) const { return sheets_[sheet].update_s_per_byte; }

  const LayerGraph& graph() const { return graph_; }
  const ClusterSpec& cluster() const { return cluster_; }
  const CostOptions& options() const { return options_; }
  long simulated_actions() const { return simulated_actions_; }  ///< work done so far

 private:
  /// Adds to the updates of an asynchronous schedule what the copy of the weights takes: a version that a
  /// microbatch still needs cannot be updated in place.
  void charge_copies(ScheduleKind kind, const std::vector<CutStage>& stages, ScheduleCosts& costs) const;
  void charge_norms(ScheduleKind kind, const std::vector<CutStage>& stages, ScheduleCosts& costs) const;
  /// Returns the costs of the stages with each of the profile's microbatches.
  std::vector<ScheduleCosts> microbatch_costs(const std::vector<CutStage>& stages, const PipelineShape& shape,
                                              ScheduleKind kind);
  struct StepCosts {
    ScheduleCosts all;
    std::vector<ScheduleCosts> turns;
  };
  StepCosts step_costs(const std::vector<CutStage>& stages, const PipelineShape& shape, ScheduleKind kind) {
    return {costs_of(stages, shape, kind), turn_costs(stages, shape, kind)};
  }
  struct Sheet {
    std::vector<double> forward, backward_input, backward_weight;  // by node
    double loss_s = 0;
    double update_s_per_byte = 0;
    double update_copy_s_per_byte = 0;
    double norm_s_per_byte = 0;
  };
  struct Prepared {
    ScheduleKind kind = ScheduleKind::OneFOneB;
    PipelineShape shape;
    ScheduleCosts costs;
    Schedule schedule;
  };
  /// Tensors over the borders of the stages.
  struct Borders {
    std::vector<PlanCrossing> crossings;
    std::vector<Bytes> back;                // by crossing: of gradients
    std::vector<Bytes> incoming, outgoing;  // by stage
  };
  void make_sheets();
  Borders borders_of(const std::vector<CutStage>& stages) const;
  double exposed_reduce(const CutStage& stage, const Sheet& sheet, const AllReduceCost& cost,
                        ScheduleKind kind) const;
  double message_seconds(const CutStage& from, const CutStage& to, Bytes bytes, int microbatches) const;
  Result<Schedule> schedule_for(ScheduleKind kind, const PipelineShape& shape,
                                const ScheduleCosts& costs) const;
  Result<const Schedule*> prepared(ScheduleKind kind, const PipelineShape& shape, const ScheduleCosts& costs);
  Bytes workspace_of(std::vector<int> nodes) const;
  std::vector<Bytes> peaks_under(const Schedule* schedule, const PipelineShape& shape,
                                 const std::vector<CutStage>& stages, const StashCounts& counts);
  Result<Simulation> run(ScheduleKind kind, const PipelineShape& shape, const StepCosts& costs);
  Result<double> step_seconds(ScheduleKind kind, PipelineShape shape, const StepCosts& costs,
                              Simulation* last);

  const LayerGraph& graph_;
  const ClusterSpec& cluster_;
  const CostOptions options_;
  SimulationOptions conditions_;
  std::unordered_map<std::string, int> node_index_;
  std::vector<Sheet> sheets_;
  std::vector<int> sheet_of_rank_;
  std::vector<int> place_;                               // of each node in execution order
  std::vector<int> producers_edges_;                     // edge indices by producer
  std::vector<Prepared> prepared_;                       // the last few schedules
  std::string graph_fingerprint_, cluster_fingerprint_;  // empty: not asked for yet
  std::map<std::vector<int>, StashCounts> stashes_;      // by kind, microbatches, replicas
  long simulated_actions_ = 0;
  /// A part of what the profile says: a microbatch of its own length, or a turn.
  struct Part {
    LayerGraph graph;
    std::unique_ptr<CostModel> model;
  };
  /// `of_kinds`: the same of the profiles of kinds of devices, where they have as many.
  std::vector<std::unique_ptr<Part>> parts_of(std::vector<LayerGraph> graphs,
                                              std::map<std::string, std::vector<LayerGraph>> of_kinds) const;
  std::vector<std::unique_ptr<Part>> of_microbatches_, of_turns_;  // made when first asked for
};

/// Returns a copy of a plan with the predictions of the cost model. The plan may be written by hand.
Plan predict(const Plan& plan, const LayerGraph& graph, const ClusterSpec& cluster,
             const CostOptions& options = {});

}  // namespace millrace
