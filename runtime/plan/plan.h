// Plans: the cut of a model into stages, the ranks of each stage, the schedule and the planner's predictions.
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

/// One stage. Each rank of `ranks` is a replica that holds all `layers` (names in execution order).
struct PlanStage {
  std::vector<std::string> layers;
  std::vector<RankId> ranks;
  bool recompute = false;
  // Predictions for one microbatch on one rank, seconds; zero in a handwritten plan.
  double forward_s = 0;
  double backward_s = 0;
  Bytes parameter_bytes = 0;
  Bytes peak_bytes = 0;  ///< per rank: weights, gradients, rule state, stash
};

/// Tensors sent from one stage to another, for one microbatch.
struct PlanCrossing {
  StageId from;
  StageId to;
  Bytes bytes = 0;
};

/// The properties of the profile on which a plan's predictions are based. `microbatch` is 0 if the plan does
/// not record it, for example because it is handwritten.
struct PlannedFor {
  std::string precision{};
  int microbatch = 0;                  ///< samples
  std::vector<LengthRange> lengths{};  ///< empty unless the profile has data of different lengths
  std::vector<std::string> hosts{};    ///< NAME:DEVICES of the cluster, in order; empty: one host
  ProfileOrigin origin{};              ///< origin of the profile
  bool operator==(const PlannedFor&) const = default;
};

/// A round: jobs that are trained together to their end, before the next round starts. Rounds take the jobs
/// in order.
struct PlanRound {
  int jobs = 1;
  /// Number of job arrays, of nearly equal size, larger ones first.
  int arrays = 1;
  double predicted_step_s = 0;  ///< 0: unknown

  int largest() const { return (jobs + arrays - 1) / arrays; }  ///< jobs in the largest array
  std::vector<int> sizes() const;                               ///< jobs of each array
  bool operator==(const PlanRound&) const = default;
};

/// A model divided into stages on ranks, by a planner or by hand; `validate` it before use.
struct Plan {
  std::string model;
  ScheduleKind schedule = ScheduleKind::OneFOneB;
  int microbatches = 1;  ///< per update; unused by schedules that update after each microbatch
  /// Independent trainings, each of `microbatches`, that are run through the pipeline one after another in a
  /// step: sub-arrays of a job array (docs/fusion.md).
  int arrays = 1;
  /// The rounds of a plan for a fixed number of jobs. The first round has `arrays` arrays, and no round has
  /// more. Empty: the plan is for any number of jobs, in one round.
  std::vector<PlanRound> rounds;
  std::vector<PlanStage> stages;
  std::vector<PlanCrossing> crossings;
  double predicted_step_s = 0;  ///< seconds of an isolated step; 0: unknown
  /// seconds of a step in a long run, in which consecutive steps overlap; 0: unknown
  double predicted_run_step_s = 0;
  double predicted_spread = 0;  ///< the profile's Measured::spread; no prediction can be more accurate
  std::string planner;          ///< the name of the planner
  std::string graph_fingerprint;
  std::string cluster_fingerprint;
  PlannedFor planned_for;

  int num_stages() const { return static_cast<int>(stages.size()); }
  int num_ranks() const;
  int num_jobs() const;  ///< jobs of all rounds; 0: any number
  /// Returns the plan of one round: for that round's jobs, with its predictions, and without `rounds`.
  Plan of_round(std::size_t round) const;

  static Result<Plan> load(const std::string& path);
  static Result<Plan> parse(std::string_view json, const std::string& name);
  std::string to_json() const;
  Status save(const std::string& path) const;
  std::string fingerprint() const;
};

/// Returns every error of the plan itself. Stages: none at all, one without layers or ranks, a duplicate
/// layer. Ranks: one missing from 0..n-1, twice in a stage, or in two stages unless the schedule allows
/// chunks. Numbers: microbatches < 1, or more replicas than microbatches. Schedules: one that is incompatible
/// with the plan's weight versions. Several arrays: an asynchronous schedule, or microbatches that are not
/// divisible among the replicas. Rounds: any that are inconsistent with `arrays`.
Problems validate(const Plan& plan);
/// Returns the errors above and those against the graph: unknown layers (the nearest name as hint), missing
/// layers, an edge to an earlier stage, more stages than layers.
Problems validate(const Plan& plan, const LayerGraph& graph);
/// Returns the errors of the plan against a model, given by its layer names in execution order.
Problems validate(const Plan& plan, const std::string& model, const std::vector<std::string>& layers);

/// The differences between a run and the run for which a plan was made. A value that one of them does not
/// specify is not compared.
struct OtherThanPlanned {
  Problems problems;  ///< differences that prevent the use of the plan: another precision
  /// Differences that invalidate the plan's predictions: another microbatch, or lengths that differ by more
  /// than 10 %.
  std::vector<std::string> notes;
};
/// `microbatches`: in a step of the run. A profile for it has as many.
OtherThanPlanned compare(const PlannedFor& planned, const PlannedFor& run, int microbatches = 1);

/// Returns a plan that divides the layers into `stages` equal shares. Stage s is on `replicas` ranks from s *
/// replicas on. One stage with one replica is plain training on one rank. With `chunks` > 1, for schedules
/// that allow it, each rank has several stages. The schedule determines whether they form a V (chunks 2) or
/// are assigned round-robin.
Plan uniform_plan(const std::string& model, const std::vector<std::string>& layers, int stages, int replicas,
                  int microbatches, ScheduleKind schedule, int chunks = 1);

}  // namespace millrace
