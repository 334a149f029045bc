// The costs of a cut on a cluster: per-stage times, transfers, all-reduce, memory, and the simulated step.
// LibTorch-free; docs/planning.md has the formulas.
#pragma once

#include <map>
#include <memory>
#include <span>
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
  /// The runtime's way: buckets leave while the last pass over weight gradients goes on. Only the part of the
  /// all-reduce after that pass is charged.
  Overlapped,
  Serial,  ///< one all-reduce of all gradients after the last backward
};
constexpr auto names_of(ReduceModel) {
  return std::to_array<std::string_view>({"overlapped", "serial"});
}

struct CostOptions {
  ReduceModel reduce = ReduceModel::Overlapped;
  Bytes bucket_bytes = 4 * kMiB;  ///< ExecutorOptions::bucket_bytes of the runtime
  int loaded_ahead = 8;           ///< LoaderOptions::prefetch: batches that wait in the loader
  int rule_copies = 1;            ///< parameter-sized tensors that the update rule keeps: RuleMemory
  bool share_rule_state = false;  ///< ZeRO-1: replicas share these tensors. The predicted time is the same
  /// train --clip-norm. Flushing schedules clip the norm of the whole model, asynchronous ones that of each
  /// stage.
  bool clips_norm = false;
  /// Plan::arrays: the number of job arrays that follow each other in a step. Each has weights of its own.
  /// Microbatches are counted over all arrays; layers cost what the profile of one array says.
  int arrays = 1;
  /// Profiles measured on a kind of device, by the kind's name: the same layers as the planner's profile.
  std::map<std::string, LayerGraph> profiles;

  /// Returns the number of ranks among which a stage divides the rule's copies.
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
  std::vector<double> reduce_s;  ///< the part that no backward hides
  std::vector<double> update_s;  ///< includes the norm of the gradient
  std::vector<double> bubble;    ///< share of the makespan in which the stage's busiest rank is idle
  std::vector<Bytes> parameter_bytes;
  std::vector<Bytes> peak_bytes;  ///< peak memory of the stage's fullest rank
  std::vector<PlanCrossing> crossings;
  /// Indexed by crossing: seconds of one message over the slowest pair of ranks that exchange it.
  std::vector<double> transfer_s;
};

/// The parts of a step's seconds. They add up to `step_s`.
struct StepBreakdown {
  /// All computing, spread over the ranks in proportion to their speeds. No plan has less.
  double compute_s = 0;
  double imbalance_s = 0;  ///< the busiest rank's compute beyond `compute_s`
  /// Fill and drain: a step without transfers, all-reduces and updates, less the busiest rank's compute.
  double bubble_s = 0;
  double update_s = 0;    ///< the updates add this
  double reduce_s = 0;    ///< the all-reduces add this
  double transfer_s = 0;  ///< the transfers add this
  double lengths_s = 0;   ///< different lengths of microbatches add this to a step of equal ones
  double step_s = 0;
};

/// What the ranks of each stage hold at most, in microbatches and weight versions. It follows from the order
/// of actions alone, not from the costs. Indexed by stage.
struct StashCounts {
  std::vector<std::vector<StageMoment>> moments;  ///< when a rank can be fullest; never none
  std::vector<int> versions;
  /// Returns how many microbatches a stage of the index stashes in whole at least, at some moment.
  int whole(std::size_t stage) const;
};

/// Returns the seconds for `bytes` between two ranks: latency + bytes / bandwidth of the link that joins
/// them, and the copies between device and host if the cluster names them.
double transfer_seconds(const ClusterSpec& cluster, RankId a, RankId b, Bytes bytes);

/// Returns the port to the other hosts that each rank uses. A port belongs to a host of the cluster or, if
/// the cluster has symmetric levels, to an innermost component. Returns an empty list if every pair of ranks
/// has a wire of its own (one host, one level).
std::vector<int> ports_of(const ClusterSpec& cluster);

/// Returns one direction of the wire between two ranks, as SimulationOptions::wire tells it.
PairWire wire_between(const ClusterSpec& cluster, RankId a, RankId b);

/// The seconds of the runtime's all-reduce over `ranks` in their order (runtime/base/all_reduce_route.h). The
/// slowest of the links that it takes counts. With r ranks:
/// - directly: latency + (r-1) bytes / bandwidth;
/// - along a tree of d levels: 2 d latency + (r-1) bytes / bandwidth, which the first rank gets;
/// - in chunks: 2 latency + 2 (r-1)/r bytes / bandwidth;
/// - host after host: the chunks inside the hosts, and between h hosts 2 (h-1) latency + 2 (p+h-2)/p bytes /
///   bandwidth for p pieces. Two hosts take (p+1)/p instead of 2 (p+h-2)/p.
/// `sharing` is the number of all-reduces that share a host's port at a time.
class AllReduceCost {
 public:
  AllReduceCost() = default;
  AllReduceCost(const ClusterSpec& cluster, const std::vector<int>& ports, const std::vector<RankId>& ranks,
                int sharing = 1);
  double seconds(Bytes bytes) const;  ///< 0 for a single rank or no bytes
  /// Returns the bytes of others that each rank adds to its own.
  Bytes added(Bytes bytes) const;
  /// Returns for how long the all-reduce alone occupies the ports of hosts: at most seconds(bytes).
  std::vector<ReducePorts::Port> port_seconds(Bytes bytes) const;

 private:
  struct Slowest {
    double latency_s = 0;
    double s_per_byte = 0;
  };
  double members_ = 0;
  AllReduceRoute route_;        // the route of a sum too large for the direct way
  Slowest inside_, between_;    // slowest link between neighbouring members, inside a host and between hosts
  double tree_levels_ = 0;      // 0: small sums go directly
  double pairs_over_port_ = 0;  // pairs of members that send over the busiest port
  std::vector<std::pair<int, double>> passes_;  // hosts, and how often each byte passes their ports
  double sharing_ = 1;
};
double all_reduce_seconds(const ClusterSpec& cluster, const std::vector<RankId>& ranks, Bytes bytes);

/// Returns the cost of the all-reduce of each stage, while those of the other stages use the same ports.
std::vector<AllReduceCost> all_reduce_costs(const ClusterSpec& cluster, const std::vector<int>& ports,
                                            const std::vector<std::vector<RankId>>& ranks_of_stage);

/// A backward computes the gradients of inputs and of weights together, or first those of the inputs alone.
enum class Halves { Together, Apart };

/// Returns the most bytes that a backward of the layer works with besides its saved bytes. Apart: its first
/// half.
inline Bytes own_workspace(const LayerNode& node, Halves halves) {
  return halves == Halves::Apart ? node.input_workspace() : node.workspace_bytes;
}

/// Returns the saved bytes that a backward of the layer frees. Apart: its first half, which leaves what the
/// gradients of the weights need.
inline Bytes freed_by(const LayerNode& node, Halves halves) {
  return node.saved_bytes - (halves == Halves::Apart ? node.kept_between() : 0);
}

/// The memory of a rank of a stage: (parameters + lowered) x versions + parameters x (gradients + rule
/// copies) + batches that were loaded ahead + the fullest of its moments. A moment has the stash of each
/// microbatch, `between` for those whose backward is half done, posted receives, a send each way (incoming +
/// outgoing), and the workspace. `incoming` and `outgoing` are the bytes of the tensors that cross the
/// stage's borders for one microbatch. The stash of a microbatch is saved + arrived. With recompute it is
/// incoming only, and `saved` is added for the backward that runs.
struct StageMemory {
  Bytes parameters = 0;
  Bytes lowered = 0;  ///< low-precision copies of the parameters, for each version (LayerNode::lowered_bytes)
  Bytes loaded = 0;   ///< batches that were loaded ahead for one array
  Bytes saved = 0;
  Bytes between = 0;  ///< kept of a microbatch from its input gradient to its weight gradient
  Bytes incoming = 0;
  Bytes arrived = 0;  ///< of incoming: bytes that layers keep and that `saved` does not count
  Bytes outgoing = 0;
  Bytes workspace = 0;  ///< temporary bytes of a backward beyond the stash that it has freed by then
  /// The same of a backward to the inputs alone, which turns the stash into `between`.
  Bytes split_workspace = 0;
  Bytes weight_workspace = 0;  ///< the same of the second half, whose microbatch is no longer in the stash
  int versions = 1;
  int rule_copies = 1;
  int rule_shards = 1;  ///< ranks that share the rule's copies
  bool recompute = false;
  int arrays = 1;  ///< job arrays, each with parameters, gradients and rule state of its own
  /// The bytes that all-reduces of an array receive. They are held only beside the last microbatch's stash.
  Bytes reduced = 0;
  /// Tied parameters on their way to or from other stages, from the update to the next step's first forward.
  Bytes exchanged = 0;
  std::span<const StageMoment> moments{};  ///< none: one microbatch and no message
  Bytes total() const;
  /// Returns the same bytes as peak_bytes_of (simulate.h) takes them, for a rank of several stages.
  StageBytes bytes() const;
};

/// Predicts the costs of cuts of one graph on one cluster. It keeps references: graph and cluster must
/// outlive it. It is not thread-safe, since it caches the last schedules.
class CostModel {
 public:
  CostModel(const LayerGraph& graph, const ClusterSpec& cluster, CostOptions options = {});

  /// Returns the stages of a validated plan as node indices.
  std::vector<CutStage> stages_of(const Plan& plan) const;
  /// Sorts `nodes` into the runtime's execution order, which does not depend on the order in a plan.
  void sort_by_execution(std::vector<int>& nodes) const;
  PipelineShape shape_of(const std::vector<CutStage>& stages, int microbatches) const;
  /// Returns the costs of a cut. For a model that is trained in turns they are sums over the turns. `kind`
  /// decides which pass of the last backward the all-reduces overlap, and which updates copy the weights.
  ScheduleCosts costs_of(const std::vector<CutStage>& stages, const PipelineShape& shape,
                         ScheduleKind kind) const;
  /// Returns the costs of each turn, for in_turns (simulate.h); empty if the model has no turns.
  std::vector<ScheduleCosts> turn_costs(const std::vector<CutStage>& stages, const PipelineShape& shape,
                                        ScheduleKind kind);
  /// Returns the seconds of a step with the profile's microbatches, in their order and each of its own
  /// length, divided by the seconds of a step in which each takes the mean: a long microbatch makes others
  /// wait. Returns 1 if all are alike, and for turns, which are costed with means. `costs` are those of the
  /// stages.
  double length_share(ScheduleKind kind, const std::vector<CutStage>& stages, PipelineShape shape,
                      const ScheduleCosts& costs);
  /// Returns the options of every simulation: they name the ports that messages share.
  const SimulationOptions& conditions() const { return conditions_; }

  /// Returns a copy of the plan with predictions; see predict() below.
  Plan predict(const Plan& plan);

  /// Simulates a step. Returns a Problem if the schedule does not exist for this shape, for example with more
  /// replicas than microbatches.
  Result<StepEstimate> estimate(ScheduleKind kind, int microbatches, const std::vector<CutStage>& stages);
  /// Returns the memory of each stage, for one version and one stashed microbatch. A step has `microbatches`
  /// for each array. Stages of one rank count a field that they read once, with the first of them.
  std::vector<StageMemory> memory_of(const std::vector<CutStage>& stages, int microbatches) const;
  /// Returns a time below which no order of the actions can end.
  double busiest_rank_s(ScheduleKind kind, int microbatches, const std::vector<CutStage>& stages) const;
  Result<StepBreakdown> breakdown(ScheduleKind kind, int microbatches, const std::vector<CutStage>& stages);
  /// Returns whether `train --sync-batch-norm` accepts such a plan (check_replicas_meet). Returns true if the
  /// profile was made without that option.
  bool replicas_can_meet(ScheduleKind kind, int microbatches, const std::vector<CutStage>& stages);
  enum class Stash { Exact, Bound };
  /// Returns how much each stage holds at most. The numbers are exact for one stage per rank in a fixed
  /// order. For other schedules they are lower bounds. So they are with `Stash::Bound`, which is quick,
  /// except for schedules that may not exist for the shape.
  Result<StashCounts> stash(ScheduleKind kind, const PipelineShape& shape, Stash wanted = Stash::Exact);
  /// Returns the peak bytes of each stage's fullest rank, the same as estimate() does, without a simulation.
  Result<std::vector<Bytes>> peaks(ScheduleKind kind, int microbatches, const std::vector<CutStage>& stages);

  /// A sheet is a table of costs for one kind of device; all ranks of a sheet are equal.
  int num_sheets() const { return static_cast<int>(sheets_.size()); }
  int sheet_of(RankId rank) const { return sheet_of_rank_[rank.value]; }
  double forward_s(int sheet, int node) const { return sheets_[sheet].forward[node]; }
  double backward_s(int sheet, int node) const {
    return sheets_[sheet].backward_input[node] + sheets_[sheet].backward_weight[node];
  }
  double loss_s(int sheet) const { return sheets_[sheet].loss_s; }
  double update_s_per_byte(int sheet) const { return sheets_[sheet].update_s_per_byte; }

  /// Returns the bytes that a rank receives while `ranks` add up gradients of `parameters` bytes. Two
  /// replicas receive all bytes, since their buckets are under way at the same time. More replicas receive
  /// the chunks of one bucket, since their buckets go one after the other. CPU ranks of one host read each
  /// other's gradients in shared memory and receive nothing.
  Bytes reduced_bytes(const std::vector<RankId>& ranks, Bytes parameters) const;

  const LayerGraph& graph() const { return graph_; }
  const ClusterSpec& cluster() const { return cluster_; }
  const CostOptions& options() const { return options_; }
  /// Returns the number of actions that were simulated so far, as a measure of work.
  long simulated_actions() const { return simulated_actions_; }

 private:
  /// Adds the seconds of the copy of the weights to the updates of an asynchronous schedule: a version that a
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
    std::vector<double> forward, backward_input, backward_weight;  // indexed by node
    double loss_s = 0;
    double update_s_per_byte = 0;
    double update_copy_s_per_byte = 0;
    double norm_s_per_byte = 0;
    double sum_s_per_byte = 0;
  };
  struct Prepared {
    ScheduleKind kind = ScheduleKind::OneFOneB;
    PipelineShape shape;
    ScheduleCosts costs;
    Schedule schedule;
  };
  /// The bytes that cross the borders of the stages for one microbatch.
  struct Borders {
    std::vector<PlanCrossing> crossings;
    std::vector<Bytes> back;                // indexed by crossing: bytes of the gradients
    std::vector<Bytes> incoming, outgoing;  // indexed by stage
    std::vector<Bytes> arrived;             // indexed by stage: of incoming, what LayerEdge::kept_bytes says
  };
  void make_sheets();
  Borders borders_of(const std::vector<CutStage>& stages) const;
  /// The seconds of an all-reduce after the last backward, and those from its first bucket to that end.
  struct Exposed {
    double seconds = 0, lead_s = 0;
  };
  Exposed exposed_reduce(const CutStage& stage, const Sheet& sheet, const AllReduceCost& cost,
                         ScheduleKind kind) const;
  Bytes parameters_of(const CutStage& stage) const;
  double message_seconds(const CutStage& from, const CutStage& to, Bytes bytes, int microbatches) const;
  Result<Schedule> schedule_for(ScheduleKind kind, const PipelineShape& shape,
                                const ScheduleCosts& costs) const;
  Result<const Schedule*> prepared(ScheduleKind kind, const PipelineShape& shape, const ScheduleCosts& costs);
  Bytes workspace_of(std::vector<int> nodes, Halves halves) const;
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
  std::vector<int> place_;                               // each node's place in execution order
  std::vector<int> producers_edges_;                     // edge indices, sorted by producer
  std::vector<Prepared> prepared_;                       // the last few schedules
  std::string graph_fingerprint_, cluster_fingerprint_;  // empty: not computed yet
  std::map<std::vector<int>, StashCounts> stashes_;      // key: kind and shape that are counted
  long simulated_actions_ = 0;
  /// One part of the profile with its cost model: a microbatch of its own length, or a turn.
  struct Part {
    LayerGraph graph;
    std::unique_ptr<CostModel> model;
  };
  /// Makes a model of each of `graphs`. `of_kinds` has the same parts of the profiles of kinds of devices. A
  /// kind with another number of parts keeps its whole profile.
  std::vector<std::unique_ptr<Part>> parts_of(std::vector<LayerGraph> graphs,
                                              std::map<std::string, std::vector<LayerGraph>> of_kinds) const;
  std::vector<std::unique_ptr<Part>> of_microbatches_, of_turns_;  // made on first use
};

/// Compares the profiles of the cluster's kinds (CostOptions::profiles) to `graph`: they must have its layers
/// and its microbatch, and none that the cluster names may be missing.
Problems check_kind_profiles(const LayerGraph& graph, const ClusterSpec& cluster,
                             const std::map<std::string, LayerGraph>& profiles);

/// Returns a copy of a plan with the predictions of the cost model. The plan may be written by hand.
Plan predict(const Plan& plan, const LayerGraph& graph, const ClusterSpec& cluster,
             const CostOptions& options = {});

}  // namespace millrace
