// How a model is cut: stages, their ranks, the schedule, and what the planner predicts.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/plan/cluster_spec.h"
#include "runtime/plan/layer_graph.h"
#include "runtime/plan/schedule_kinds.h"

namespace millrace {

/// One stage: a set of layers (by name, in execution order) held by each rank of `ranks` (replicas).
struct PlanStage {
  std::vector<std::string> layers;
  std::vector<RankId> ranks;
  bool recompute = false;
  // Predictions for one microbatch on one rank, seconds; zero if the plan was written by hand.
  double forward_s = 0;
  double backward_s = 0;
  Bytes parameter_bytes = 0;
  Bytes peak_bytes = 0;  ///< per rank: weights, gradients, optimiser state, stash
};

/// Tensors that cross from one stage to another, for one microbatch.
struct PlanCrossing {
  StageId from;
  StageId to;
  Bytes bytes = 0;
};

/// The profile that a plan's predictions were made from. In a plan that was written by hand, or that does not
/// say, `microbatch` is 0.
struct PlannedFor {
  std::string precision{};
  int microbatch = 0;                  ///< samples
  std::vector<LengthRange> lengths{};  ///< where the profile was measured with data of different lengths
  bool operator==(const PlannedFor&) const = default;
};

/// Jobs that are trained together, one round after the other: those that follow on the jobs of the rounds
/// before.
struct PlanRound {
  int jobs = 1;
  int arrays = 1;  ///< that they are divided into, of equal size as far as possible, larger ones first
  double predicted_step_s = 0;  ///< 0: unknown

  int largest() const { return (jobs + arrays - 1) / arrays; }  ///< jobs of an array at most
  std::vector<int> sizes() const;                               ///< jobs of each array
  bool operator==(const PlanRound&) const = default;
};

/// A model cut into stages on ranks. A planner or a person writes it; `validate` it before use.
struct Plan {
  std::string model;
  ScheduleKind schedule = ScheduleKind::OneFOneB;
  int microbatches = 1;  ///< per update; ignored by PipeDream's schedules that update after each
  /// Independent trainings, each of `microbatches`, that go through the pipeline one after the other in a
  /// step: sub-arrays of a job array (docs/fusion.md).
  int arrays = 1;
  /// The rounds of a plan for a fixed number of jobs. The first round has `arrays` arrays, and no round has
  /// more. Empty: the plan is for any jobs, in one round.
  std::vector<PlanRound> rounds;
  std::vector<PlanStage> stages;
  std::vector<PlanCrossing> crossings;
  double predicted_step_s = 0;      ///< of a step by itself; 0: unknown
  double predicted_run_step_s = 0;  ///< of a step among many, where ends overlap with the next; 0: unknown
  double predicted_spread = 0;      ///< of the profile's blocks (Measured::spread): no prediction is closer
  std::string planner;              ///< provenance: who made it
  std::string graph_fingerprint;
  std::string cluster_fingerprint;
  PlannedFor planned_for;

  int num_stages() const { return static_cast<int>(stages.size()); }
  int num_ranks() const;
  int num_jobs() const;  ///< of all rounds; 0: any number
  /// Returns the plan of one round: for that round's jobs, with its predictions, and without `rounds`.
  Plan of_round(std::size_t round) const;

  static Result<Plan> load(const std::string& path);
  static Result<Plan> parse(std::string_view json, const std::string& name);
  std::string to_json() const;
  Status save(const std::string& path) const;
  std::string fingerprint() const;
};

/// Every problem of the plan by itself: no stages, a stage without layers or ranks, a rank in two stages
/// (unless the schedule allows chunks; never twice in one) or missing from 0..n-1, a layer twice,
/// microbatches < 1, replicas > microbatches, schedule/version mismatch; of several arrays an asynchronous
/// schedule, or microbatches that do not divide among the replicas; rounds that do not go with `arrays`.
Problems validate(const Plan& plan);
/// The above, and: layers unknown to the graph or missing from the plan (nearest name as hint), stage order
/// against the graph's edges (an edge to an earlier stage), more stages than layers.
Problems validate(const Plan& plan, const LayerGraph& graph);
/// Validates against a list of layer names in execution order (a model).
Problems validate(const Plan& plan, const std::string& model, const std::vector<std::string>& layers);

/// The differences between a run and the run that a plan was made for. A value that one of them does not say
/// is not compared.
struct OtherThanPlanned {
  Problems problems;  ///< the plan does not fit: another precision
  std::vector<std::string>
      notes;  ///< its predictions are void: another microbatch, or lengths by more than 10 %
};
OtherThanPlanned compare(const PlannedFor& planned, const PlannedFor& run);

/// `stages` equal shares of the layers, stage s on ranks s * replicas and following (1 stage, 1 replica:
/// plain single-process training). `chunks` stages per rank, for schedules that allow it, are placed as the
/// schedule wants it: along a V (chunks 2) or round and round.
Plan uniform_plan(const std::string& model, const std::vector<std::string>& layers, int stages, int replicas,
                  int microbatches, ScheduleKind schedule, int chunks = 1);

}  // namespace millrace
